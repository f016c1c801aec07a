"""One class per aggregate, which holds every fact about it. Pure: no state, no operators."""
