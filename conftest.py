"""Where pytest looks for fixtures that all kinds of tests share."""

pytest_plugins = ["postgres_fixture", "wheel_fixture"]
