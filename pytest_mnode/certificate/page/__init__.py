"""The certificate as one HTML page: nothing is loaded from outside, and no script is needed.

`view` says what stands where (pure), `template.html.j2` and `style.css` how it looks, `pictures`
draws charts by matplotlib (`plots`) and fits them into the page. The page is made from what
certificate.json has, and from nothing else.
"""

from pytest_mnode.certificate.page.render import missing_pictures, page_text

__all__ = ["missing_pictures", "page_text"]
