"use strict";

/** The run at a glance: what scheduling saves, how far the run is, and what needs a look. */
const Overview = (() => {
  const percent = (share) => `${Math.round(100 * Math.abs(share))} %`;

  function update(state) {
    saving(state);
    tiles(state);
    alarms(state);
  }

  /** Say what the run has taken beside what random selection would have taken. */
  function saving({ run, top, random, random_why: reason }) {
    const hero = byId("saving"), what = run.buffered ? "updates" : "rounds";
    byId("saving-bars").hidden = !random;
    hero.classList.remove("good", "bad");
    if (!random) {
      const [title, why] = {
        random: ["Random selection", "This run selects at random: it is what others are compared with."],
        pauses: ["not estimated", "The server was busy with other things than steps, such as evaluation, for more than a tenth of the time, while clients went on with their work."],
        early: ["–", `An estimate follows after 20 ${run.buffered ? "steps" : "rounds"} with updates.`],
      }[reason] ?? ["–", ""];
      setText(byId("saving-value"), title);
      setText(byId("saving-text"), top.round || reason === "random" ? why : "");
      return;
    }
    const { ours_s: ours, random_s: mean, low_s: low, high_s: high, unknown } = random;
    const share = (other) => (other - ours) / Math.max(other, 1e-12);
    const interval = `between ${Format.duration(low)} and ${Format.duration(high)}`;
    const clear = low > ours || high < ours, known = unknown < 0.1;
    bar("ours", ours, Math.max(ours, high), [ours, ours]);
    bar("random", mean, Math.max(ours, high), [low, high]);
    if (!known) {
      setText(byId("saving-value"), "not known yet");
      setText(byId("saving-text"), `${percent(unknown)} of what random selection would pick are clients that this run hardly tried: it would have taken ${interval}.`);
    } else if (!clear) {
      setText(byId("saving-value"), "no clear difference");
      setText(byId("saving-text"), `Random selection would have taken about ${Format.duration(mean)} for as many ${what}, ${interval} (95 %).`);
    } else {
      const saved = mean - ours, ends = [share(low), share(high)].map(percent);
      hero.classList.add(saved > 0 ? "good" : "bad");
      setText(byId("saving-value"), `${Format.duration(Math.abs(saved))} ${saved > 0 ? "saved" : "lost"}`);
      setText(byId("saving-text"), saved > 0
        ? `${percent(share(mean))} less time than random selection would have taken for as many ${what} (95 %: ${ends.join(" to ")}).`
        : `Random selection would have taken about ${Format.duration(mean)} for as many ${what}, ${interval} (95 %).`);
    }
  }

  function bar(which, value, most, [low, high]) {
    const at = (each) => `${(100 * each) / Math.max(most, 1e-12)}%`;
    byId(`bar-${which}`).style.width = at(value);
    setText(byId(`bar-${which}-text`), Format.duration(value));
    if (which !== "random") return;
    byId("bar-span").style.left = at(low);
    byId("bar-span").style.width = at(high - low);
  }

  function tiles({ run, top, clients }) {
    const unit = run.buffered ? "Step" : "Round";
    setText(byId("t-round-label"), unit);
    setText(byId("t-round"), run.num_rounds ? `${top.round} of ${run.num_rounds}` : String(top.round));
    setText(byId("t-steps"), top.round ? (top.steps === top.round ? "each changed the model" : `${top.steps} changed the model`) : "");
    byId("t-progress").style.width = `${run.num_rounds ? Math.min(100, (100 * top.round) / run.num_rounds) : 0}%`;
    setText(byId("t-time-label"), run.simulated ? "Elapsed, virtual" : "Elapsed");
    setText(byId("t-time"), Format.duration(top.time_s));
    setText(byId("t-rest"), top.rest_s == null ? "" : `about ${Format.duration(top.rest_s)} left${run.target_accuracy ? " at most" : ""}`);
    setText(byId("t-accuracy"), top.accuracy == null ? "–" : top.accuracy.toFixed(4));
    const target = run.target_accuracy ? `, target ${run.target_accuracy}` : "";
    setText(byId("t-best"), top.best_accuracy == null ? "" : `best ${top.best_accuracy.toFixed(4)} in ${unit.toLowerCase()} ${top.best_round}${target}`);
    const metrics = Object.entries(top.client_metrics ?? {}), listed = metrics.slice(0, 4).map(([name, value]) => `${name} ${Number(value.toPrecision(4))}`);
    if (metrics.length > listed.length) listed.push(`${metrics.length - listed.length} more`);
    setText(byId("t-on-clients"), listed.length ? `on clients: ${listed.join(", ")} in ${unit.toLowerCase()} ${top.client_metrics_round}` : "");
    const there = top.connected != null, idle = run.buffered && !there;
    setText(byId("t-clients-label"), there ? "Clients connected" : idle ? "Clients there" : "Clients available");
    const count = there ? top.connected : top.available == null ? null : top.available + (idle ? top.busy ?? 0 : 0);
    setText(byId("t-clients"), !clients.name.length ? (there ? "none yet" : "–") : count == null ? String(clients.name.length) : `${count} of ${clients.name.length}`);
    const more = there && clients.name.length ? [`${top.available} available`, `${top.busy} busy`] : idle && top.busy != null ? [`${top.busy} at work`, `${top.available} idle`] : [];
    if (top.opted_out) more.push(`${top.opted_out} opted out`);
    if (top.left_out) more.push(`${top.left_out} left out`);
    if (top.newcomers.length) more.push(`${top.newcomers.length} new`);
    if (top.refused) more.push(`${top.refused} refused`);
    setText(byId("t-busy"), more.join(", "));
    setText(byId("t-last-label"), `Last ${unit.toLowerCase()}`);
    setText(byId("t-last"), Format.seconds(top.round_s));
    setText(byId("t-deadline"), run.tau_max_s ? `deadline ${Format.seconds(run.tau_max_s)}${run.finds_deadline ? ", found" : ""}${top.suggested_tau_max_s ? `; ${Format.seconds(top.suggested_tau_max_s)} suggested` : ""}` : "");
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

  return { update };
})();
