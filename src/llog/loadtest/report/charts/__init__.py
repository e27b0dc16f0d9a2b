"""SVG charts without scripts: lines, stacked areas, percentile plots and bars, each with a legend and a data table.

model.py   what a chart shows           scales.py  ticks, number formats, thinning of points
plots.py   lines, stacked, percentiles  bars.py    horizontal bars
figure.py  the HTML figure of a chart   style.py   colours for light and dark pages

The package knows nothing of load tests. The same chart gives the same text; names are escaped.
"""

from llog.loadtest.report.charts.figure import render_chart
from llog.loadtest.report.charts.model import Chart, Mark, Series
from llog.loadtest.report.charts.style import STYLE

__all__ = ["STYLE", "Chart", "Mark", "Series", "render_chart"]
