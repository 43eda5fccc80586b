"""A registry is a mapping from names to entries, with errors that help."""

import pytest

from bayespilco.core.registry import Registry


def shapes() -> Registry[type]:
    registry: Registry[type] = Registry("shape")

    @registry.register("circle", colour="red")
    class Circle:
        """A round one.

        More about it.
        """

    registry.add("square", int, "A square one.")
    return registry


def test_entries_carry_what_was_registered() -> None:
    registry = shapes()
    assert list(registry) == ["circle", "square"] and len(registry) == 2
    circle = registry["circle"]
    assert (circle.name, circle.description, circle.extras["colour"]) == ("circle", "A round one.", "red")
    assert registry["square"].value is int and registry["square"].description == "A square one."
    assert registry.name_of(int) == "square"
    assert "triangle" not in registry and registry.get("triangle") is None


def test_errors_list_the_names() -> None:
    registry = shapes()
    with pytest.raises(ValueError, match=r"Unknown shape 'circel'; there are: circle, square\. Did you mean 'circle'"):
        registry["circel"]
    with pytest.raises(ValueError, match="There is a shape named 'circle' already"):
        registry.add("circle", float)
    with pytest.raises(ValueError, match="str is not a registered shape; there are: circle, square"):
        registry.name_of(str)
