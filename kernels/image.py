"""The packed image as one array: a header and its sections, put together and told apart again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hpmoe.kernels import protocol

Sections = Mapping[str, np.ndarray]  # by name, of the dtypes of protocol.SECTIONS
HEADER_NAMES = frozenset(protocol.HEADER.names or ())


def pack_image(sections: Sections, *, ep_size: int, tile_rows: int, num_events: int, index_bits: int) -> np.ndarray:
    """Lays out a dict of section arrays (names and dtypes of protocol.SECTIONS) as one image.

    Returns a contiguous uint8 array. Raises KeyError for a missing section, ValueError when a section's dtype is wrong.
    """
    header = np.zeros((), protocol.HEADER)
    header["magic"], header["version"] = protocol.MAGIC, protocol.VERSION
    header["ep_size"], header["tile_rows"] = ep_size, tile_rows
    header["num_events"], header["index_bits"] = num_events, index_bits
    offset = _aligned(protocol.HEADER.itemsize)
    for name, dtype in protocol.SECTIONS.items():
        if sections[name].dtype != dtype:
            raise ValueError(f"pack_image: section {name!r} has dtype {sections[name].dtype}, expected {dtype}")
        header[f"{name}_offset"] = offset
        if f"num_{name}" in HEADER_NAMES:
            header[f"num_{name}"] = len(sections[name])
        offset = _aligned(offset + sections[name].nbytes)
    header["num_queues"] = len(sections["queues"]) - 1
    header["image_bytes"] = offset
    image = np.zeros(offset, np.uint8)
    image[: protocol.HEADER.itemsize] = np.frombuffer(header.tobytes(), np.uint8)
    for name in protocol.SECTIONS:
        start = int(header[f"{name}_offset"])
        image[start : start + sections[name].nbytes].view(sections[name].dtype)[:] = sections[name]
    return image


def unpack_image(image: np.ndarray) -> tuple[np.void, Sections]:
    """Views an image as (header, dict of section arrays), without copying; the inverse of pack_image."""
    header = image[: protocol.HEADER.itemsize].view(protocol.HEADER)[0]
    lengths = {name: int(header[f"num_{name}"]) for name in protocol.SECTIONS if f"num_{name}" in HEADER_NAMES}
    lengths["queues"] += 1
    lengths["peer_order"] = 2 * int(header["ep_size"]) ** 2
    sections = {}
    for name, dtype in protocol.SECTIONS.items():
        start = int(header[f"{name}_offset"])
        sections[name] = image[start : start + lengths[name] * dtype.itemsize].view(dtype)
    return header, sections


def _aligned(offset: int) -> int:
    return -(-offset // protocol.SECTION_ALIGNMENT) * protocol.SECTION_ALIGNMENT
