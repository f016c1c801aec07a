"""From a program to a JobGraph: translate, validate, chain, explain. Pure: nothing runs here."""
