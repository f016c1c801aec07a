"""Runners: `<engine>_<script>.py`, each started in its engine's environment; see protocol.py."""
