import numpy as np
import pytest
import torch
from PIL import Image as Pictures

from seepage.core.errors import DataNotFound, UnreadableFile
from seepage.data import load
from seepage.domains import Image

COLOURS = np.random.default_rng(1).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)


def draw(folder, name, pixels, **options):
    folder.mkdir(parents=True, exist_ok=True)
    Pictures.fromarray(pixels).save(folder / name, **options)


def test_lossless_files_come_back_as_they_went_in_and_classes_take_turns(tmp_path):
    draw(tmp_path / "dog", "1.png", COLOURS[0])
    draw(tmp_path / "cat", "2.bmp", COLOURS[1])
    draw(tmp_path / "cat", "1.tif", COLOURS[2])
    data = load(f"folder:{tmp_path}")
    assert data.class_names == ("cat", "dog")
    assert data.labels.tolist() == [0, 1, 0]
    expected = COLOURS[[2, 0, 1]].transpose(0, 3, 1, 2)
    assert np.array_equal((data.inputs * 255).round().numpy(), expected)
    assert data.domain == Image((3, 32, 32))


def test_pictures_of_any_size_are_cut_to_their_centre_square(tmp_path):
    wide = np.zeros((40, 120, 3), dtype=np.uint8)
    wide[:, 40:80] = 255
    draw(tmp_path / "a", "wide.png", wide)
    draw(tmp_path / "a", "tall.jpg", wide.transpose(1, 0, 2), quality=100)
    data = load(f"folder:{tmp_path}", pixels=20)
    assert data.inputs.shape == (2, 3, 20, 20)
    # The outermost pixels blend with what lies beyond the cut.
    assert float(data.inputs[..., 1:-1, 1:-1].min()) > 0.98


def test_a_folder_of_grey_pictures_has_one_channel_and_a_mixed_one_three(tmp_path):
    draw(tmp_path / "x", "grey.png", COLOURS[0, ..., 0])
    assert load(f"folder:{tmp_path}").domain.shape == (1, 32, 32)
    draw(tmp_path / "y", "colour.png", COLOURS[1])
    mixed = load(f"folder:{tmp_path}").inputs
    assert mixed.shape == (2, 3, 32, 32)
    assert torch.equal(mixed[0, 0], mixed[0, 2])


def test_sixteen_bit_pictures_keep_their_depth(tmp_path):
    levels = np.arange(1024, dtype=np.uint16).reshape(32, 32) * 64
    draw(tmp_path / "scan", "deep.png", levels)
    data = load(f"folder:{tmp_path}")
    assert np.allclose(data.inputs[0, 0].numpy(), levels / 65535, atol=1e-7)


def test_pictures_without_a_fixed_range_are_refused(tmp_path):
    draw(tmp_path / "scan", "float.tif", np.ones((4, 4), dtype=np.float32))
    with pytest.raises(UnreadableFile, match=r"float\.tif.*8 nor 16 bits"):
        load(f"folder:{tmp_path}")


def test_transparent_palettes_are_read_without_a_warning(tmp_path):
    (tmp_path / "a").mkdir()
    palette = Pictures.fromarray(COLOURS[0]).quantize(16)
    palette.save(tmp_path / "a" / "p.png", transparency=bytes([0] * 16))
    assert load(f"folder:{tmp_path}").inputs.shape == (1, 3, 32, 32)


def test_a_rotated_photograph_is_set_upright(tmp_path):
    upright = np.zeros((32, 32, 3), dtype=np.uint8)
    upright[:16] = 255
    exif = Pictures.Exif()
    exif[0x0112] = 3
    draw(tmp_path / "a", "turned.png", upright[::-1], exif=exif)
    data = load(f"folder:{tmp_path}")
    assert float(data.inputs[0, :, :16].min()) == 1


def test_hidden_and_foreign_files_are_passed_over(tmp_path):
    draw(tmp_path / "a", "1.png", COLOURS[0])
    (tmp_path / "a" / "notes.txt").write_text("not a picture")
    (tmp_path / "a" / ".thumb.png").write_bytes(b"")
    (tmp_path / ".cache").mkdir()
    (tmp_path / "README").write_text("")
    data = load(f"folder:{tmp_path}")
    assert (len(data), data.class_names) == (1, ("a",))


def test_images_without_sub_folders_are_all_of_one_class(tmp_path):
    for number, colour in enumerate(COLOURS[:2]):
        draw(tmp_path, f"{number}.png", colour)
    data = load(f"folder:{tmp_path}")
    assert (len(data), data.class_names, data.labels.tolist()) == (2, ("image",), [0, 0])


def test_empty_folders_say_what_was_expected(tmp_path):
    with pytest.raises(DataNotFound, match="one sub-folder of images per class"):
        load(f"folder:{tmp_path}")
    draw(tmp_path, "loose.png", COLOURS[0])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataNotFound, match="one sub-folder of images per class"):
        load(f"folder:{tmp_path}")
    with pytest.raises(DataNotFound, match="gone"):
        load(f"folder:{tmp_path / 'gone'}")


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.gif", "a.bmp", "a.tif", "a.webp"])
@pytest.mark.parametrize("kept", [0, 1 / 4, 1 / 2])
def test_damaged_pictures_are_named(tmp_path, name, kept):
    draw(tmp_path / "a", name, COLOURS[0])
    path = tmp_path / "a" / name
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(UnreadableFile, match=f"{name}.*replace or remove"):
        load(f"folder:{tmp_path}")


def test_a_picture_that_claims_to_be_enormous_is_unreadable(tmp_path, monkeypatch):
    draw(tmp_path / "a", "bomb.png", COLOURS[0])
    monkeypatch.setattr(Pictures, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UnreadableFile, match=r"bomb\.png"):
        load(f"folder:{tmp_path}")
