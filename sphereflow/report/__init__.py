"""A run as one web page: a sphere to turn, a time slider, linked curves, the case, the books, where it comes from.

The page is one HTML file that loads nothing. `packing` thins and compresses densities and tokens, `series` chooses the curves,
`facts` words what stands in tables, `document` puts it all into the template; the template, its style and its scripts are in
the folder page/, with uPlot (MIT licence) for the curves. What was thinned, and how much was lost, stands on the page.
"""

from sphereflow.report.document import Report, write_report

__all__ = ["Report", "write_report"]
