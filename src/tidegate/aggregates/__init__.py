"""One class per aggregate, with everything that is to be known of it. Pure: no state, no operators."""
