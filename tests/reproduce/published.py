"""Folders in the forms in which VOC2007 and COCO 2014 are published, of few small pictures and two classes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

TRAIN, TEST = 12, 6


def _picture(path: Path, number: int) -> None:
    """Bright on the left where ``number`` is even, on the right else, amid noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 90, (16, 20, 3)).astype(np.uint8)
    pixels[:, :10] += np.uint8(120 * (number % 2 == 0))
    pixels[:, 10:] += np.uint8(120 * (number % 2 == 1))
    Image.fromarray(pixels).save(path)


def voc(folder: Path) -> Path:
    """The cat shows in even pictures; the dog in odd ones, and in every third it is hard to see."""
    lists = folder / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    for part, numbers in (("trainval", range(TRAIN)), ("test", range(TRAIN, TRAIN + TEST))):
        for number in numbers:
            _picture(folder / "JPEGImages" / f"{number:06}.jpg", number)
        cat = [f"{number:06} {'1' if number % 2 == 0 else '-1'}" for number in numbers]
        dog = [f"{n:06} {'0' if n % 3 == 2 else '1' if n % 2 else '-1'}" for n in numbers]
        (lists / f"cat_{part}.txt").write_text("\n".join(cat) + "\n")
        (lists / f"dog_{part}.txt").write_text("\n".join(dog) + "\n")
        (lists / f"{part}.txt").write_text("\n".join(f"{number:06}" for number in numbers) + "\n")
    return folder


def coco(folder: Path) -> Path:
    """A zebra in even pictures, a bus in odd ones, twice; nothing in the last of all."""
    (folder / "annotations").mkdir(parents=True)
    for part, numbers in (("train2014", range(TRAIN)), ("val2014", range(TRAIN, TRAIN + TEST))):
        for number in numbers:
            _picture(folder / part / f"COCO_{number}.jpg", number)
        shown = [number for number in numbers if number < TRAIN + TEST - 1]
        found = {
            "categories": [{"id": 9, "name": "bus"}, {"id": 4, "name": "zebra"}],
            "images": [{"id": number, "file_name": f"COCO_{number}.jpg"} for number in reversed(numbers)],
            "annotations": [{"image_id": n, "category_id": 9 if n % 2 else 4} for n in shown for _ in range(2)],
        }
        (folder / "annotations" / f"instances_{part}.json").write_text(json.dumps(found))
    return folder
