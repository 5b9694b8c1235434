"use strict";

/** What is shown, and where it comes from: the server, or the file that this page is. */
const Page = {
  state: null,
  saved: byId("saved") ? JSON.parse(byId("saved").textContent) : null,
  collator: new Intl.Collator(undefined, { numeric: true }),

  /** Return a round with its scores; null if there is none. */
  async round(number) {
    if (Page.saved) return Page.saved.rounds[number] ?? null;
    try {
      const answer = await fetch(`round/${number}`);
      return answer.ok ? await answer.json() : null;
    } catch {
      return null;
    }
  },
};

(() => {
  const STATES = { running: "running", ended: "ended", silent: "no sign of life", gone: "its folder is gone", "not begun": "not begun" };
  const LOST = "this page's server does not answer";
  let fetching = false, again = false;

  async function load() {
    if (fetching) { again = true; return; }
    fetching = true;
    try {
      const answer = await fetch("state", { cache: "no-cache" });
      if (answer.ok) show(await answer.json());
    } catch {
      trouble(LOST);
    } finally {
      fetching = false;
      if (again) { again = false; load(); }
    }
  }

  function trouble(text) {
    const badge = byId("state");
    badge.className = "badge silent";
    setText(badge, text);
  }

  function show(state) {
    if (state.error) {
      trouble(`the run directory cannot be read (${state.error})`);
      return;
    }
    Page.state = state;
    header(state);
    tiles(state);
    alarms(state);
    Clients.show();
    Why.update();
    Charts.update();
    document.documentElement.dataset.round = state.top.round;
  }

  function header({ run, top }) {
    document.title = `${run.name}: round ${top.round}`;
    setText(byId("name"), run.name);
    const what = [run.simulated ? "simulation" : "fleet", run.policy, `${run.num_selected ?? "–"} clients a round`, `deadline ${run.finds_deadline ? "auto, now " : ""}${Format.seconds(run.tau_max_s)}`];
    setText(byId("what"), run.exists ? what.join(" · ") : run.state === "gone" ? "" : "waiting for the run to begin");
    const badge = byId("state"), text = Page.saved ? `saved: ${STATES[run.state]}` : STATES[run.state];
    badge.className = `badge ${run.state}`;
    setText(badge, text);
  }

  function tiles({ run, top, clients }) {
    setText(byId("t-round"), run.num_rounds ? `${top.round} of ${run.num_rounds}` : String(top.round));
    setText(byId("t-steps"), top.round ? `${top.steps} changed the model` : "");
    setText(byId("t-time-label"), run.simulated ? "Elapsed, virtual" : "Elapsed");
    setText(byId("t-time"), Format.duration(top.time_s));
    setText(byId("t-rest"), top.rest_s == null ? "" : `about ${Format.duration(top.rest_s)} left${run.target_accuracy ? " at most" : ""}`);
    setText(byId("t-accuracy"), top.accuracy == null ? "–" : top.accuracy.toFixed(4));
    const target = run.target_accuracy ? `, target ${run.target_accuracy}` : "";
    setText(byId("t-best"), top.best_accuracy == null ? "" : `best ${top.best_accuracy.toFixed(4)} in round ${top.best_round}${target}`);
    const metrics = Object.entries(top.client_metrics ?? {}), listed = metrics.slice(0, 4).map(([name, value]) => `${name} ${Number(value.toPrecision(4))}`);
    if (metrics.length > listed.length) listed.push(`${metrics.length - listed.length} more`);
    setText(byId("t-on-clients"), listed.length ? `on clients: ${listed.join(", ")} in round ${top.client_metrics_round}` : "");
    const there = top.connected != null;
    setText(byId("t-clients-label"), there ? "Clients connected" : "Clients available");
    setText(byId("t-clients"), `${(there ? top.connected : top.available) ?? "–"} of ${clients.name.length}`);
    const more = there ? [`${top.available} available`, `${top.busy} busy`] : [];
    if (top.opted_out) more.push(`${top.opted_out} opted out`);
    if (top.newcomers.length) more.push(`${top.newcomers.length} new`);
    if (top.refused) more.push(`${top.refused} refused`);
    setText(byId("t-busy"), more.join(", "));
    setText(byId("t-last"), Format.seconds(top.round_s));
    setText(byId("t-deadline"), run.tau_max_s ? `of ${Format.seconds(run.tau_max_s)}${top.suggested_tau_max_s ? `, ${Format.seconds(top.suggested_tau_max_s)} suggested` : ""}` : "");
    byId("t-meter").value = top.round_s && run.tau_max_s ? Math.min(1, top.round_s / run.tau_max_s) : 0;
  }

  function alarms({ alarms, run, top }) {
    const texts = alarms.map((alarm) => alarm.text);
    if (run.damaged_line) texts.unshift(`line ${run.damaged_line} of rounds.jsonl cannot be read: nothing after it is shown`);
    const list = byId("alarm-list"), shown = texts.slice(0, 12);
    if (texts.length > shown.length) shown.push(`and ${texts.length - shown.length} more`);
    const calm = !texts.length && top.round > 0;
    const wanted = calm ? ["No alarms."] : shown;
    const same = list.children.length === wanted.length && wanted.every((text, i) => list.children[i].textContent === text);
    if (!same) list.replaceChildren(...wanted.map((text) => make("li", { class: calm ? "calm" : null }, text)));
  }

  Clients.begin();
  Why.begin();
  if (Page.saved) {
    byId("save").hidden = true;
    show(Page.saved.state);
  } else {
    const events = new EventSource("events");
    events.onmessage = () => { if (!document.hidden) load(); };
    events.onerror = () => trouble(LOST);
    document.addEventListener("visibilitychange", () => { if (!document.hidden) load(); });
    load();
  }
})();
