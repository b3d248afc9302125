"""Where pytest looks for fixtures that all kinds of tests share."""

pytest_plugins = ["wheel_fixture"]
