"""What all kinds of tests share: where fixtures are, and that no test is about time."""

import hypothesis

pytest_plugins = ["postgres_fixture", "triton_fixture", "wheel_fixture"]

hypothesis.settings.register_profile("haywain", deadline=None)
hypothesis.settings.load_profile("haywain")
