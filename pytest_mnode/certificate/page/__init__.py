"""The certificate as one HTML page: nothing is loaded from outside, and no script is needed.

`render` selects the content, `template.html.j2` and `style.css` lay it out, and `pictures` draws
charts by matplotlib. All data of the page are in certificate.json.
"""

from pytest_mnode.certificate.page.render import missing_pictures, page_text

__all__ = ["missing_pictures", "page_text"]
