"""Figures of the reproductions: SVG with text as text, readable on light and dark pages, the same bytes for the same
numbers."""

import re

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot, ticker

# Text, axes and the reference: contrast 4.5 on white and 4.2 on GitHub's dark background.
INK = "#767676"
# Of Okabe and Ito: distinct also to color-blind readers, and visible on white and on black.
COLORS = ["#e69f00", "#0a84d0", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#a08c00", "#8f6fd1"]

pyplot.rcParams.update(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "furlong",
        "font.size": 9,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "axes.titlesize": 9,
        "xtick.color": INK,
        "ytick.color": INK,
        "grid.color": "#808080",
        "grid.alpha": 0.3,
        "axes.grid": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "lines.markersize": 3.5,
        "lines.linewidth": 1.4,
        "savefig.transparent": True,
    }
)


def panels(count, rows=1, width=7.6, height=3.2):
    """Returns a figure and a flat list of `count` axes."""
    figure, axes = pyplot.subplots(rows, count // rows, figsize=(width, height), squeeze=False)
    return figure, list(axes.flat)


def style(index, markers=True):
    """Returns color, line and marker of series number `index`; None: of the reference."""
    if index is None:
        return {"color": INK, "linewidth": 2, "marker": "o" if markers else None}
    return {
        "color": COLORS[index % len(COLORS)],
        "linestyle": ["-", "--", ":"][index // len(COLORS) % 3],
        "marker": "os^Dv"[index % 5] if markers else None,
    }


def lengths_axis(axes, values, label):
    """A logarithmic x axis with a tick at each value, such as sequence lengths."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(values)
    axes.set_xticklabels([f"{value // 1024}k" if value >= 1024 and value % 1024 == 0 else value for value in values])
    axes.minorticks_off()
    axes.set_xlabel(label)


def logarithmic(axes, label):
    """A logarithmic y axis with plain numbers at few multiples of powers of ten, at powers alone if it is long."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    multiples = (1, 1.5, 2, 3, 5, 7) if high / low < 10 else (1, 2, 5) if high / low < 300 else (1,)
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=multiples))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.15g}"))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.set_ylabel(label)


def legend_below(figure, axes, columns):
    """One legend for all panels, of the labels of `axes`, below them."""
    handles, labels = axes.get_legend_handles_labels()
    rows = -(-len(labels) // columns)
    bottom = (0.12 + 0.17 * rows) / figure.get_figheight()
    figure.tight_layout(rect=(0, bottom, 1, 1))
    figure.legend(handles, labels, loc="lower center", ncol=columns)


def save(figure, path):
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    text = path.read_text()
    # Less than half the size: no metadata, indentation and names of parts, coordinates with two decimals.
    for pattern in (r"<metadata>.*?</metadata>", r"(?<=\n) +", r' id="[\w.]+_\d+"', r"(?<=\d\.\d\d)\d+(?=[^<>]*>)"):
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    path.write_text(text)
