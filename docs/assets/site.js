// What moves sideways can be reached with the keyboard, and what the theme leaves without a name has one.
"use strict";

function label() {
  document.querySelector("[data-md-component=search]")?.setAttribute("aria-label", "Search");
  document.querySelectorAll(".md-code__nav").forEach((nav, i) => nav.setAttribute("aria-label", `Code ${i + 1}`));
  for (const place of document.querySelectorAll(".md-typeset p, .md-typeset__scrollwrap, .md-typeset pre > code"))
    if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
}

// The theme wraps tables when the page is loaded, and other widths make other things too wide.
window.addEventListener("load", () => new ResizeObserver(label).observe(document.body));
