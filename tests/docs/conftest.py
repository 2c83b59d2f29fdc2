"""A browser without a window, for looking at the built site."""

import pytest

from tests.browser import chromium

browser = pytest.fixture(scope="session")(chromium)
