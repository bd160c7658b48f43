"""The certificate as one HTML page: nothing is loaded from outside, and no script is needed.

`view` selects the content (pure), `template.html.j2` and `style.css` lay it out, `pictures` draws
charts by matplotlib (`plots`) and embeds them in the page. All data of the page are in
certificate.json.
"""

from pytest_mnode.certificate.page.render import missing_pictures, page_text

__all__ = ["missing_pictures", "page_text"]
