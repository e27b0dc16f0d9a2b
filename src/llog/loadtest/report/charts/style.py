"""Colours of charts: eight that differ in hue and lightness, so that colour-blind readers tell them apart, for light
and for dark pages. Each has a contrast of at least 4.5 against the page's cards; the second four are dashed too."""

from __future__ import annotations

from typing import Final

CARD_LIGHT: Final = "#ffffff"
CARD_DARK: Final = "#171b22"
INK_LIGHT: Final = "#1b2430"
INK_DARK: Final = "#e8ebf0"
QUIET_LIGHT: Final = "#56606f"
QUIET_DARK: Final = "#a9b3c1"
PALETTE_LIGHT: Final = ("#1a56c4", "#bd4a0c", "#07705a", "#3a0a55", "#5c3d00", "#d81b60", "#0079a8", "#111318")
PALETTE_DARK: Final = ("#5b9dff", "#e8833a", "#42e4af", "#e9c9ff", "#f9d356", "#f55a94", "#27b5e6", "#dcdfe6")
DASHED_FROM: Final = 4

_HUES: Final = "".join(f".h{n}{{--hue:var(--c{n})}}" for n in range(len(PALETTE_LIGHT)))


def _variables(card: str, ink: str, quiet: str, grid: str, shade: str, palette: tuple[str, ...]) -> str:
    hues = "".join(f"--c{n}:{colour};" for n, colour in enumerate(palette))
    return f"--card:{card};--ink:{ink};--quiet:{quiet};--grid:{grid};--shade:{shade};{hues}"


STYLE: Final = (
    ":root{" + _variables(CARD_LIGHT, INK_LIGHT, QUIET_LIGHT, "#e3e7ec", "#8794a61f", PALETTE_LIGHT) + "}"
    "@media screen and (prefers-color-scheme:dark){:root{"
    + _variables(CARD_DARK, INK_DARK, QUIET_DARK, "#2c333e", "#9aa7ba1f", PALETTE_DARK)
    + "}}"
    + _HUES
    + """
.chart{margin:0;display:flex;flex-direction:column;min-width:0}
.chart figcaption h3{margin:0;font-size:1rem}
.chart figcaption p{margin:.15rem 0 .5rem;color:var(--quiet);font-size:.85rem}
.chart svg.plot{display:block;width:100%;height:auto;overflow:visible}
.chart text{font:12px system-ui,sans-serif;fill:var(--quiet);font-variant-numeric:tabular-nums}
.chart .grid{stroke:var(--grid);stroke-width:1}
.chart .axis{stroke:var(--quiet);stroke-width:1}
.chart .line{fill:none;stroke:var(--hue);stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.chart .dash{stroke-dasharray:6 4;stroke-linecap:butt}
.chart .dot,.chart .bar{fill:var(--hue)}
.chart .area{fill:var(--hue);fill-opacity:.75;stroke:var(--card);stroke-width:1}
.chart .hollow{fill-opacity:.25;stroke:var(--hue);stroke-width:1.5;stroke-dasharray:5 3}
.chart .phase{fill:var(--shade)}
.chart .event{stroke:var(--ink);stroke-width:1.2;stroke-dasharray:2 3}
.chart .eventspan{fill:var(--c1);fill-opacity:.12}
.chart .flag{fill:var(--ink)}
.chart text.flagtext{fill:var(--card);font-weight:700;font-size:10px;dominant-baseline:central}
.chart .hover{fill:transparent}
.chart .hover:hover{fill:var(--shade)}
.chart .value{fill:var(--ink)}
.chart .legend{list-style:none;display:flex;flex-wrap:wrap;gap:.15rem 1rem;margin:.3rem 0 0;padding:0;font-size:.85rem}
.chart .legend li{display:flex;align-items:center;gap:.4rem;overflow-wrap:anywhere}
.chart .legend svg{flex:none;width:24px;height:12px}
.chart .legend .sign{flex:none;background:var(--ink);color:var(--card);border-radius:50%;width:1.15rem;height:1.15rem;\
display:inline-grid;place-items:center;font-size:.7rem;font-weight:700}
.chart details{margin-top:.4rem;font-size:.82rem}
.chart summary{cursor:pointer;color:var(--quiet);width:max-content}
.chart .scroll{max-height:20rem;overflow:auto;border:1px solid var(--grid);border-radius:6px;margin-top:.3rem}
.chart table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
.chart th,.chart td{padding:.2rem .6rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid)}
.chart th:first-child{text-align:left}
.chart thead th{position:sticky;top:0;background:var(--card)}
.chart .none{border:1px dashed var(--grid);border-radius:8px;color:var(--quiet);padding:2rem 1rem;text-align:center}
@media screen and (max-width:620px){
.chart text{font-size:19px}.chart text.flagtext{font-size:15px}.chart .flag{r:11px}
.chart .minor{display:none}.chart .line{stroke-width:2.6}}
"""
)
