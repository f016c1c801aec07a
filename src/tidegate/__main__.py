"""`python -m tidegate`: the command line."""

from tidegate.cli.main import app

if __name__ == "__main__":
    app(prog_name="python -m tidegate")
