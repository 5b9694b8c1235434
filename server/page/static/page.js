"use strict";

/** What is shown, and where it comes from: the server, or the file that this page is. */
const Page = {
  state: null,
  saved: byId("saved") ? JSON.parse(byId("saved").textContent) : null,
  collator: new Intl.Collator(undefined, { numeric: true }),

  /** Return what the server has at an address below this page's; null if there is none. */
  async ask(address) {
    try {
      const answer = await fetch(address);
      return answer.ok ? await answer.json() : null;
    } catch {
      return null;
    }
  },

  /** Return a round with its scores; null if there is none. */
  async round(number) {
    return Page.saved ? Page.saved.rounds[number] ?? null : Page.ask(`round/${number}`);
  },

  /** Return the last results of a client; null if there are none. */
  async client(arm) {
    return Page.saved ? Page.saved.clients[arm] ?? null : Page.ask(`client/${arm}`);
  },
};

(() => {
  const STATES = { running: "running", ended: "ended", silent: "no sign of life", gone: "its folder is gone", "not begun": "not begun" };
  let fetching = false, again = false, lost = false, shownAt = null;

  async function load() {
    if (fetching) { again = true; return; }
    fetching = true;
    try {
      const answer = await fetch("state", { cache: "no-cache" });
      if (answer.ok) {
        lost = false;
        show(await answer.json());
      } else if (answer.status === 401) {
        notice("This page wants the token again: open the address that the server printed.");
      }
    } catch {
      gone();
    } finally {
      fetching = false;
      if (again) { again = false; load(); }
    }
  }

  /** Say why nothing new comes: a run that has ended takes its page with it, and that is no fault. */
  function gone() {
    lost = true;
    const run = Page.state?.run, badge = byId("state");
    const where = run?.path ? ` Look at it again with: flower-simulation watch ${quoted(run.path)}` : "";
    if (run?.state === "ended") {
      notice(`The run has ended, and its page with it. This is its last state.${where}`);
    } else {
      badge.className = "badge silent";
      setText(badge, "connection lost");
      const since = shownAt ? ` This is the state of ${shownAt.toLocaleTimeString()}.` : "";
      notice(`This page's server does not answer: the run was stopped, or the network is down.${since}${where}`);
    }
  }

  function quoted(path) {
    return /^[\w./~-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`;
  }

  function notice(text) {
    byId("notice").hidden = !text;
    setText(byId("notice"), text);
  }

  function show(state) {
    if (state.error) {
      const badge = byId("state");
      badge.className = "badge silent";
      setText(badge, "cannot be read");
      notice(`The run directory cannot be read (${state.error}).`);
      return;
    }
    Page.state = state;
    shownAt = new Date();
    if (!lost) notice("");
    header(state);
    Overview.update(state);
    Clients.show();
    Why.update();
    Channels.update();
    Curves.update();
    About.update();
    document.documentElement.dataset.round = state.top.round;
  }

  function header({ run, top }) {
    const unit = run.buffered ? "step" : "round";
    document.title = `${run.name}: ${unit} ${top.round}`;
    setText(byId("name"), run.name);
    const number = run.num_selected ?? "–";
    const what = [run.simulated ? "simulation" : "fleet", run.policy, run.buffered ? `${number} channels` : `${number} clients a round`, `deadline ${run.finds_deadline ? "auto, now " : ""}${Format.seconds(run.tau_max_s)}`];
    setText(byId("what"), run.exists ? what.join(" · ") : run.state === "gone" ? "" : "waiting for the run to begin");
    const badge = byId("state"), text = Page.saved ? `saved: ${STATES[run.state]}` : STATES[run.state];
    badge.className = `badge ${run.state}`;
    setText(badge, text);
  }

  byId("all-runs").hidden = Boolean(Page.saved) || !/\/run\/[0-9a-f]+\/$/.test(location.pathname);
  Curves.begin();
  Clients.begin();
  Why.begin();
  Channels.begin();
  About.begin();
  if (Page.saved) {
    show(Page.saved.state);
  } else {
    const events = new EventSource("events");
    // In a tab that nobody looks at, the end of the run alone is fetched: its page ends soon after.
    events.onmessage = (event) => { if (!document.hidden || event.data.endsWith(" ended")) load(); };
    // A stream that breaks off says little: whether the server still answers is asked.
    events.onerror = () => setTimeout(load, 1000);
    document.addEventListener("visibilitychange", () => { if (!document.hidden && !lost) load(); });
    load();
  }
})();
