"""What ``--compiled`` does."""


def pytest_configure(config):
    if config.getoption("--compiled"):
        from tests.compiled_first import prefer_compiled

        prefer_compiled()
