"""The site: it builds with every warning an error, its links lead somewhere, its pages are small.

Recipes are not run here but in `tests/learn`; their pages are built without what they print.
"""

import functools
import html
import http.server
import importlib
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from docs.generate import learn
from mkport.learn import lesson
from mkport.learn.catalogue import Recipe, recipes

ROOT = Path(__file__).parents[2]
LARGEST = 100_000  # bytes of a page
PACKAGES = ("declare", "plan", "verify", "compose", "trace", "testing")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, of a copy of the pages."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    pages = folder / "docs"
    shutil.copytree(
        ROOT / "docs", pages, ignore=shutil.ignore_patterns("learn", "generate", "__pycache__")
    )
    (pages / "learn").mkdir()
    for recipe in recipes():
        learn.render(recipe, pages / "learn", run=False)
    (pages / "learn/index.md").write_text(learn.index())
    (folder / "mkdocs.yml").write_text(
        f"INHERIT: {ROOT}/mkdocs.yml\ndocs_dir: {pages}\nsite_dir: {folder}/site\n"
        "plugins:\n  mkdocstrings:\n    handlers:\n      python:\n"
        f"        paths: [{ROOT}]\n"
    )
    # Not --quiet: what is not logged is not counted as a warning.
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-f", str(folder / "mkdocs.yml")],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


class _Page(HTMLParser):
    """What a page refers to, and the places in it that may be referred to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            elif value and name in ("id", "name"):
                self.ids.add(value)


def _pages(site: Path) -> Iterator[tuple[Path, _Page]]:
    for path in sorted(site.rglob("*.html")):
        if path.name != "404.html":  # its links begin at the address it will have
            yield path, _Page(path.read_text())


def test_links_lead_somewhere(site: Path) -> None:
    pages = dict(_pages(site))
    assert len(pages) > 90
    broken = []
    for path, page in pages.items():
        for link in page.links:
            to = urlsplit(link)
            if to.scheme or to.netloc:
                continue
            target = (path.parent / unquote(to.path)).resolve() if to.path else path
            if not target.is_file():
                broken.append(f"{path.relative_to(site)}: {link}")
            elif to.fragment and target in pages and unquote(to.fragment) not in pages[target].ids:
                broken.append(f"{path.relative_to(site)}: no such place: {link}")
    assert not broken, "\n".join(broken)


def test_pages_are_small_and_ask_nothing_of_others(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert path.stat().st_size < LARGEST, path.relative_to(site)
        text = path.read_text()
        loaded = re.findall(
            r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="(https?:[^"]*)', text
        )
        assert not loaded, f"{path.relative_to(site)} loads {loaded}"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_reference_has_every_public_function_and_class(site: Path, package: str) -> None:
    module = importlib.import_module(f"mkport.{package}")
    ids = _Page((site / f"reference/api/{package}.html").read_text()).ids
    last = {place.rsplit(".", 1)[-1] for place in ids if place.startswith(f"mkport.{package}.")}
    public = {name for name in module.__all__ if callable(getattr(module, name))}
    aliases = {"Form"}  # of a type, which has no text of its own
    assert public - last - aliases == set()


def test_every_recipe_has_its_page_with_its_code(site: Path) -> None:
    titles = {recipe.name: recipe.title for recipe in recipes()}
    assert titles
    for name, title in titles.items():
        text = (site / f"learn/{name}.html").read_text()
        headings = re.findall(r"<h1[^>]*>(.*?)<a", text, re.DOTALL)
        assert [re.sub("<.*?>", "", h) for h in headings] == [html.escape(title, quote=False)]
        cells = learn.cells((ROOT / "recipes" / name / "recipe.py").read_text())
        assert text.count('<div class="highlight"><pre>') >= sum(not cell.prose for cell in cells)


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing of each request on the screen."""


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Where the site is served, as on the web."""
    handler = functools.partial(_Silent, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


SENT = "Network.requestWillBeSent"
WIDE = "return document.documentElement.scrollWidth"
SCHEME = "return document.body.getAttribute('data-md-color-scheme')"
UNSEEN = "return [...document.images].filter(i => !i.naturalWidth).map(i => i.src)"
SEEN_AT = ("index.html", "learn/05_counters.html", "how-to/hang.html", "reference/metrics.html")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_a_phone_and_a_desk(browser: Any, address: str, width: int, dark: bool) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.get_log("browser"), browser.get_log("performance")
    for name in SEEN_AT:
        browser.get(address + name)
        assert browser.execute_script(SCHEME) == ("slate" if dark else "default")
        assert browser.execute_script(WIDE) <= width, f"{name} is wider than the window"
        assert not browser.execute_script(UNSEEN), f"{name}: pictures that do not load"
    complaints = [entry["message"] for entry in browser.get_log("browser")]
    assert not [text for text in complaints if "favicon" not in text], complaints
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == SENT]
    assert asked and all(url.startswith((address, "data:", "blob:")) for url in asked), asked


def test_cells_are_cut_where_they_begin() -> None:
    text = '# %% [markdown]\n"""\n# Title\n"""\n\n# %%\nx = 1\nx\n'
    title, code = learn.cells(text)
    assert (title.prose, title.text, code.prose, code.text) == (True, "# Title", False, "x = 1\nx")
    assert text.splitlines()[code.line] == "x = 1"


TABS = '''# %% [markdown]
"""
# A page
"""

# %% [markdown] tab="CPU"
"""
On a CPU.
"""

# %% tab="CPU"
for i in range(2):

    print(i)

# %% [markdown] tab="CUDA"
"""
On a GPU.
"""

# %% [markdown]
"""
Behind them.
"""
'''
TABBED = """# A page

=== "CPU"

    On a CPU.

    ```python
    for i in range(2):

        print(i)
    ```

    ``` { .text .output }
    0
    1
    ```

=== "CUDA"

    On a GPU.

Behind them.
"""


def test_cells_of_a_tab_stand_in_it(tmp_path: Path) -> None:
    recipe = Recipe(99, tmp_path, "A page", ())
    recipe.file.write_text(TABS)
    assert learn.page(recipe, ["0\n1\n"]).startswith(TABBED)


SCRIPT = '''# %% [markdown]
"""
# A page
"""

# %%
from mkport.learn.lesson import show
from docs.generate.home import made_up
_, trace = made_up()
show(trace, "made_up")

# %%
print("first")
1 + 1
'''


def test_a_cell_shows_what_it_prints_draws_and_ends_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "recipe.py"
    script.write_text(SCRIPT)
    monkeypatch.setattr(lesson, "OUT", lesson.OUT)  # set back at the end
    found = [learn.run_cells(script, tmp_path / name) for name in ("one", "two")]
    assert found[0][1] == "first\n2\n"
    assert learn._shown(found[0][0], "A page") == [
        "[![A timeline: A page](pictures/made_up.svg)](pictures/made_up.svg)"
    ]
    one, two = (tmp_path / name / "made_up.svg" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_a_recipe_that_fails_has_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "recipe.py"
    script.write_text(SCRIPT + "assert False\n")
    monkeypatch.setattr(lesson, "OUT", lesson.OUT)
    with pytest.raises(AssertionError):
        learn.run_cells(script, tmp_path)
