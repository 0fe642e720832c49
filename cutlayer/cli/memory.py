"""What a client needs in memory, as a table and a picture."""

from ..training.facts.memory import PURPOSES, Bytes, total


def table(found: dict[str, Bytes]) -> list[str]:
    """For people, in MB, with the total as a share of the first."""
    first = total(next(iter(found.values())))
    rows = [f"{'MB':13}" + "".join(f"{name:>13}" for name in (*PURPOSES, "total"))]
    for mode, sizes in found.items():
        cells = "".join(f"{size / 1e6:13.3f}" for size in (*(sizes[name] for name in PURPOSES), total(sizes)))
        rows.append(f"{mode:13}{cells}  {total(sizes) / first:4.0%}")
    return rows


def picture(found: dict[str, Bytes]) -> bytes:
    """One bar a mode, its parts stacked (after Fig. 4.1 of Madill 2025), as PNG."""
    from ..audit.report.plots import INK, png, pyplot

    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6.4, 0.7 + 0.55 * len(found)))
    places, ends = list(range(len(found)))[::-1], [0.0] * len(found)
    beyond = {
        mode: {**one, "working": total(one) - sum(one[name] for name in PURPOSES[:4])} for mode, one in found.items()
    }
    for name, colour in zip(PURPOSES, ("#1d2733", "#5b7fa6", "#e0a458", "#9fc5b0", "#dfe4ea"), strict=True):
        sizes = [one[name] / 1e6 for one in beyond.values()]
        axes.barh(places, sizes, left=ends, height=0.6, color=colour, label=name)
        ends = [end + size for end, size in zip(ends, sizes, strict=True)]
    for place, end in zip(places, ends, strict=True):
        axes.text(end, place, f" {end:.2f}", va="center", color=INK)
    axes.set_yticks(places, list(found))
    axes.set_xlabel("MB of one client")
    axes.set_xlim(0, 1.15 * max(ends))
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=len(PURPOSES), frameon=False)
    return png(figure, plt)
