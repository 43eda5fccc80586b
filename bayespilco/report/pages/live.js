// While a run is learned: ask the learning program what it does, show it, and load the page again when there is more.
"use strict";

const LIVE_SECONDS = 0.5;

function follow(version) {
  const now = document.getElementById("now");
  const bar = document.getElementById("bar");
  const place = document.getElementById("search");
  let search = null;
  const ask = async () => {
    let state;
    try {
      state = await (await fetch("state.json", { cache: "no-store" })).json();
    } catch {
      now.textContent = "The learning program does not answer any more. This is what it had found.";
      return;
    }
    now.hidden = bar.hidden = false;
    now.textContent = state.now;
    bar.value = state.fraction;
    if (state.version !== version) {
      const { number, data } = window.report ?? {};
      if (data && number < data.rounds.length - 1) location.hash = number + 1; // who looks at an earlier episode stays there
      location.reload();
      return;
    }
    place.hidden = state.search.length < 2;
    if (!place.hidden) {
      const x = state.search.map((_, i) => i);
      const drawn = {
        label: "The best predicted cost during this search.",
        yLabel: "best predicted cost in this search",
        x: [0, x.length - 1],
        y: extent([state.search]),
        height: 140,
        series: [{ kind: "line", x, y: state.search, colour: "var(--belief)" }],
      };
      if (search) search.change(drawn);
      else search = new Chart(place, drawn);
    }
    if (state.ended) return;
    setTimeout(ask, 1000 * LIVE_SECONDS);
  };
  ask();
}
