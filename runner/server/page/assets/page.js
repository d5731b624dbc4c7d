// Everything on the page works without this script: it follows sessions live, loads long
// stories in parts, and sends forms without leaving the page.
const policy = globalThis.trustedTypes?.createPolicy("caisson", {createHTML: text => text}) ?? {createHTML: text => text};
const $ = id => document.getElementById(id);
const main = $("main"), flash = $("flash"), story = $("story"), tabs = $("tabs");

// The server's HTML; nothing else becomes markup.
function parse(html) {
	const t = document.createElement("template");
	t.innerHTML = policy.createHTML(html);
	return t.content;
}

const parsePage = html => new DOMParser().parseFromString(policy.createHTML(html), "text/html");

function make(name, className, ...children) {
	const e = document.createElement(name);
	if (className) e.className = className;
	e.append(...children);
	return e;
}

async function get(path) {
	const answer = await fetch(path);
	if (!answer.ok) throw new Error(`status ${answer.status}`);
	return answer.text();
}

const announce = text => $("status").textContent = text;

const inField = e => e?.matches?.("input,textarea,select");

/* Signing in: the code after # is used once, and leaves the address. */

function signIn() {
	const code = location.hash.slice(1);
	if (!$("login") || !/^[a-z2-7-]{16,20}$/i.test(code)) return;
	history.replaceState(null, "", location.pathname + location.search);
	$("code").value = code;
	$("login").requestSubmit();
}

/* Forms: what the server answers is put in place. */

document.addEventListener("submit", e => {
	const form = e.target, path = form.getAttribute("action");
	if (e.submitter?.getAttribute("aria-disabled") === "true") return e.preventDefault();
	if (form.id === "find") {
		e.preventDefault();
		return find(new URLSearchParams({q: $("search").value, after: stepNumber(here) || 0}));
	}
	if (form.method !== "post" || path === "/login" || path === "/logout") return;
	e.preventDefault();
	sendForm(form, path, e.submitter);
});

const sending = new Set();

async function sendForm(form, path, button) {
	if (sending.has(form)) return;
	sending.add(form);
	flash.replaceChildren();
	const stays = tabs && form.closest("#state,#questions"); // the stream may take the form away
	form.closest(".card")?.classList.add("mine");
	const before = told;
	try {
		const answer = await fetch(path, {method: "POST", body: new URLSearchParams(new FormData(form, button))});
		const page = parsePage(await answer.text());
		if (!answer.ok) return showProblem(form, page.getElementById("problem"));
		if (!stays && (!story || new URL(answer.url).pathname !== location.pathname)) return location.assign(answer.url);
		if (told === before) { // otherwise the stream has told us what is newer, or will
			setState(page.getElementById("state"));
			setQuestions(page.getElementById("questions"));
		}
		if (form.id === "message") {
			form.reset();
			$("message").querySelector(".row").replaceWith(page.querySelector("#message .row"));
			following = true;
			keepUp();
		}
		ended = false;
		connect();
	} catch {
		showProblem(form, make("section", "panel", make("p", "", "The server can't be reached, so this was not sent. Try again.")));
	} finally {
		sending.delete(form);
	}
}

function showProblem(form, section) {
	section ??= make("section", "panel", make("p", "", "The server refused this. Reload the page."));
	section.removeAttribute("id");
	section.querySelector("h1")?.remove();
	if (form.closest("#state,#questions") || !form.isConnected) main.prepend(flash);
	else form.before(flash);
	flash.replaceChildren(section);
	flash.scrollIntoView({block: "nearest"});
}

/* Times. */

function shortTime(seconds) {
	const s = Math.max(0, Math.floor(seconds));
	return s < 60 ? `${s}s` : s < 3600 ? `${Math.floor(s / 60)}m` : s < 86400 ? `${Math.floor(s / 3600)}h` : `${Math.floor(s / 86400)}d`;
}

function showTimes() {
	for (const t of document.querySelectorAll("[data-since]")) setText(t, shortTime((Date.now() - Date.parse(t.dateTime)) / 1000));
	for (const t of document.querySelectorAll("[data-until]")) {
		const s = Math.max(0, Math.round((Date.parse(t.dateTime) - Date.now()) / 1000));
		setText(t, `in ${Math.floor(s / 60)}:${String(s % 60).padStart(2, "0")}`);
	}
}

const setText = (e, text) => e.textContent !== text && (e.textContent = text);

/* The story: chunks are loaded within two screens of the view and dropped beyond six. A
loaded chunk is divided into parts; the steps of those further than two screens are
kept out of the document. */

const partSteps = 20, tailSteps = 400;
const loading = new Map(), stashed = new Map();
let stepHeight = 40, tailFrom = 0, tail = null;

const stepNumber = e => Number(/^s(\d+)/.exec(e?.id ?? "")?.[1] ?? 0);
const isAway = chunk => chunk.classList.contains("away");

const near = new IntersectionObserver(entries => {
	for (const {target, isIntersecting} of entries) {
		if (target.classList.contains("chunk")) {
			if (isIntersecting && isAway(target)) load(target);
		} else if (isIntersecting) restore(target);
		else stash(target);
	}
	keepUp(); // heights have changed
}, {rootMargin: "200% 0px"});

const far = new IntersectionObserver(entries => {
	for (const {target, isIntersecting} of entries) if (!isIntersecting) drop(target);
}, {rootMargin: "600% 0px"});

function stash(part) {
	if (stashed.has(part) || !part.firstChild || part.contains(document.activeElement)) return;
	const height = part.offsetHeight;
	stepHeight = 0.9 * stepHeight + 0.1 * height / part.childElementCount;
	part.style.height = `${height}px`;
	const out = document.createDocumentFragment();
	out.append(...part.childNodes);
	stashed.set(part, out);
}

function restore(part) {
	const steps = stashed.get(part);
	if (!stashed.delete(part)) return;
	part.append(steps);
	part.style.height = "";
}

// The observer reports only changes, and doesn't know of ours.
function lookAgain(part) {
	near.unobserve(part);
	near.observe(part);
}

function addPart(chunk) {
	const part = make("ol", "story part");
	chunk.append(part);
	near.observe(part);
	return part;
}

function addSteps(chunk, steps) {
	let part = chunk.lastElementChild;
	for (const step of steps) {
		let into = part && (stashed.get(part) ?? part);
		if (!into || into.childElementCount >= partSteps) {
			into = part = addPart(chunk);
			const old = chunk.children[chunk.children.length - 6];
			if (old && chunk === tail && following) { // in a burst the observer would come too late
				stash(old);
				lookAgain(old);
			}
		}
		into.append(step);
	}
}

// Puts a chunk's steps in parts, which the observer shows if they are near. Those that
// are in the document stay there until it says otherwise.
function fill(chunk, steps, shown) {
	near.unobserve(chunk);
	chunk.replaceChildren();
	chunk.classList.remove("away", "failed");
	chunk.style.minHeight = "";
	for (let i = 0; i < steps.length; i += partSteps) {
		const part = addPart(chunk), some = steps.slice(i, i + partSteps);
		if (shown) {
			part.append(...some);
			continue;
		}
		const out = document.createDocumentFragment();
		out.append(...some);
		stashed.set(part, out);
		part.style.height = `${some.length * stepHeight}px`;
	}
	far.observe(chunk);
}

function load(chunk) {
	if (!isAway(chunk)) return Promise.resolve();
	if (!loading.has(chunk)) loading.set(chunk, loadSteps(chunk).finally(() => loading.delete(chunk)));
	return loading.get(chunk);
}

async function loadSteps(chunk) {
	try {
		const steps = [...parse(await get(`${base}/chunk/${chunk.dataset.chunk}`)).children];
		fill(chunk, steps.filter(s => stepNumber(s) <= tailFrom)); // the tail has the others
		keepUp();
	} catch {
		chunk.classList.add("failed");
		chunk.textContent = "These steps could not be loaded. Trying again …";
		near.unobserve(chunk);
		setTimeout(() => near.observe(chunk), 3000);
	}
}

function drop(chunk) {
	if (isAway(chunk) || chunk === tail || chunk.contains(document.activeElement)) return;
	const height = chunk.offsetHeight;
	for (const part of chunk.children) forget(part);
	setAway(chunk, height);
}

function forget(part) {
	near.unobserve(part);
	stashed.delete(part);
}

function setAway(chunk, height) {
	far.unobserve(chunk);
	chunk.replaceChildren(`${chunk.dataset.steps} steps`);
	chunk.classList.add("away");
	chunk.style.minHeight = `${height ?? chunk.dataset.steps * stepHeight}px`;
	near.observe(chunk);
}

// Steps that the stream brings are in a chunk of their own, the tail, until the server
// has chunks of them.
function addToTail(steps) {
	if (!tail) {
		tail = make("li", "chunk tail");
		story.append(tail);
	}
	addSteps(tail, steps);
}

function takeFromTail(wanted) {
	const out = [];
	for (const part of [...tail.children]) {
		const from = stashed.get(part) ?? part;
		out.push(...[...from.children].filter(wanted));
		for (const s of out) if (s.parentNode === from) s.remove();
		if (!from.firstChild) {
			forget(part);
			part.remove();
		} else if (from !== part) part.style.height = `${from.childElementCount * stepHeight}px`;
	}
	return out;
}

const tailLength = () => tail ? [...tail.children].reduce((n, p) => n + (stashed.get(p) ?? p).childElementCount, 0) : 0;

// Takes the chunks that the server has made since from its page.
let syncing = false;

async function sync() {
	if (syncing) return;
	syncing = true;
	try {
		const page = parsePage(await get(`${base}?chunk=0`)), fresh = page.getElementById("story");
		const whole = !("reading" in fresh.dataset), wasReading = "reading" in story.dataset;
		const list = [...fresh.querySelectorAll(":scope>.chunk")];
		if (!wasReading) list.pop(); // it still grows
		for (const c of list) {
			if (!wasReading && c.dataset.last > last) break;
			let mine = $(c.id);
			if (!mine) {
				mine = make("li", "chunk");
				mine.id = c.id;
				story.insertBefore(mine, tail);
			}
			const changed = mine.dataset.last !== c.dataset.last;
			Object.assign(mine.dataset, {...c.dataset});
			if (wasReading) {
				if (changed) {
					for (const part of mine.children) forget(part);
					setAway(mine);
				}
				continue;
			}
			tailFrom = Math.max(tailFrom, Number(c.dataset.last));
			const steps = tail ? takeFromTail(s => stepNumber(s) >= c.dataset.first && stepNumber(s) <= c.dataset.last) : [];
			if (mine.childElementCount || !mine.firstChild) {
				addSteps(mine, steps);
				far.observe(mine);
			}
		}
		if (wasReading) {
			tailFrom = last = Number(fresh.dataset.after);
			if (whole) {
				delete story.dataset.reading;
				$("reading")?.remove();
			}
			setState(page.getElementById("state"));
		}
		keepUp();
	} finally {
		syncing = false;
	}
}

async function readRest() {
	setText($("reading"), "The rest of this session is being read …");
	while ("reading" in story.dataset) {
		await new Promise(done => setTimeout(done, 500));
		await sync().catch(() => {});
	}
}

/* Moving through the story. */

let here = null;

function setHere(step) {
	here?.classList.remove("here");
	here = step;
	step.classList.add("here");
	const after = stepNumber(step);
	for (const id of ["prevfailure", "nextfailure"]) $(id).href = $(id).href.replace(/after=\d*/, `after=${after}`);
	document.querySelector("#find [name=after]").value = after;
}

// Shows the step with this number, or the next one.
async function jump(number, id) {
	const chunks = [...story.children];
	const chunk = chunks.find(c => c === tail || Number(c.dataset.last) >= number) ?? chunks.at(-1);
	if (!chunk) return;
	following = false;
	await load(chunk);
	const steps = [...chunk.children].flatMap(part => [...(stashed.get(part) ?? part).children]);
	const wanted = id ?? `s${number}`;
	const step = steps.find(s => s.id === wanted) ?? steps.find(s => stepNumber(s) >= number) ?? steps.at(-1);
	if (!step) return;
	const part = [...chunk.children].find(p => (stashed.get(p) ?? p).contains(step));
	for (const p of [part, part.nextElementSibling]) {
		if (p) restore(p);
		if (p) lookAgain(p);
	}
	setHere(step);
	step.scrollIntoView({block: "start", behavior: "instant"});
	following = false;
}

function jumpToHash() {
	const found = /^#(s(\d+)(-\d+)?)$/.exec(location.hash);
	if (found) jump(Number(found[2]), found[1]);
	return found;
}

async function find(query) {
	const answer = await fetch(`${base}/find?${query}`).catch(() => null);
	if (!answer?.ok) return announce("The search failed. Try again.");
	const to = new URL(answer.url).searchParams;
	$("notfound")?.remove();
	if (to.get("found") !== "no") {
		await jump(Number(to.get("at")));
		history.replaceState(null, "", `#${here?.id ?? ""}`);
		return announce(`Step ${to.get("at")}`);
	}
	if (query.get("q") && Number(query.get("after"))) { // go on at the beginning
		query.delete("after");
		return find(query);
	}
	const text = query.get("q") ? `No step has “${query.get("q")}”.` : "No other step failed in this direction." + (here ? " The next search begins at the first step." : "");
	const note = make("p", "note", text);
	note.id = "notfound";
	document.querySelector(".bar").after(note);
	announce(text);
	here?.classList.remove("here");
	here = null;
}

function moveBy(n) {
	if (!story) {
		const links = [...document.querySelectorAll(".rows a")];
		return links.at(Math.max(0, links.indexOf(document.activeElement) + n))?.focus();
	}
	const steps = [...document.querySelectorAll("#story .step,#open .step")];
	const at = here?.isConnected ? steps.indexOf(here) + n : steps.findIndex(s => s.getBoundingClientRect().top >= 0);
	const step = steps[Math.max(0, at)];
	if (!step) return;
	setHere(step);
	step.tabIndex = -1;
	(step.querySelector("summary") ?? step).focus({preventScroll: true});
	step.scrollIntoView({block: "nearest", behavior: "instant"});
}

/* Following what happens. */

let following = false, unseen = 0;

const atEnd = () => innerHeight + scrollY >= document.documentElement.scrollHeight - 80;

function keepUp() {
	if (following) scrollTo({top: document.documentElement.scrollHeight, behavior: "instant"});
	showFollow();
}

function showFollow() {
	const button = $("follow");
	if (!button) return;
	if (following) unseen = 0;
	button.hidden = following || !("live" in story.dataset) || ended;
	setText(button, unseen ? `↓ ${unseen} new` : "↓ Follow");
}

/* The stream. */

let source = null, ended = false, last = 0, tries = 0, retry, lost;
let told = 0; // how often the stream has told the state or the questions
const base = tabs ? `/s/${tabs.dataset.session}` : "";

function connect() {
	if (source || document.hidden || ended || !tabs || story && "reading" in story.dataset) return;
	clearTimeout(retry);
	source = new EventSource(`${base}/stream?after=${story ? last : Number.MAX_SAFE_INTEGER}`);
	source.onopen = () => {
		tries = 0;
		clearTimeout(lost);
		lost = undefined;
		if ($("lost")) $("lost").hidden = true;
	};
	source.onerror = () => {
		disconnect();
		lost ??= setTimeout(showLost, 3000);
		retry = setTimeout(connect, Math.min(500 * 2 ** tries++, 15000) * (0.5 + Math.random()));
	};
	for (const [name, take] of Object.entries(events)) source.addEventListener(name, e => take(e.data, e.lastEventId));
}

function disconnect() {
	source?.close();
	source = null;
}

async function showLost() {
	const note = $("lost");
	if (!note || document.hidden || ended) return;
	note.hidden = false;
	announce("The connection to the server is lost.");
	const status = await fetch("/attention").then(a => a.status, () => 0);
	if (status === 401) {
		const link = make("a", "", "Sign in");
		link.href = `/login?to=${encodeURIComponent(location.pathname)}`;
		note.replaceChildren("You are signed out. ", link);
	}
}

const finished = new Set(); // calls whose step has come
const events = {
	step(html, id) {
		last = Number(id) || last;
		if (!story) return;
		const steps = [...parse(html).children];
		for (const step of steps) {
			if (step.dataset.call) {
				$(`open-${step.dataset.call}`)?.remove();
				finished.add(step.dataset.call);
			}
			if (step.matches(".assistant,.modelcall")) endAnswer();
			noteAnswer(step.dataset.call, step);
			step.classList.add("new");
		}
		$("nothing")?.remove();
		addToTail(steps);
		unseen += steps.length;
		keepUp();
		if (tailLength() > tailSteps) sync().catch(() => {});
	},
	open(html) {
		const li = parse(html).firstElementChild, old = li && $(li.id);
		if (!li) return;
		noteAnswer(li.dataset.open, li);
		if (!story || finished.has(li.dataset.open)) return;
		if (!old) $("open").append(li);
		else if (old.contains(document.activeElement)) old.querySelector("summary").replaceChildren(...li.querySelector("summary").childNodes);
		else {
			li.querySelector(".output").append(...old.querySelector(".output").childNodes);
			li.querySelector("details").open = old.querySelector("details").open;
			old.replaceWith(li);
		}
		keepUp();
	},
	delta(text) {
		if (!story) return;
		const d = JSON.parse(text);
		if (d.stream === "answer") performance.now() > answered + 80 && addOutput(liveAnswer(), d);
		else addOutput($(`open-${d.call}`)?.querySelector(".output"), d);
		keepUp();
	},
	ask(html) {
		told++;
		setQuestions(parse(html).querySelector("#questions"));
		keepUp();
	},
	state(html) {
		told++;
		setState(parse(html).querySelector("#state"));
	},
	end() {
		ended = true;
		disconnect();
		$("open")?.replaceChildren();
		showFollow();
	},
};

// The answer so far makes room for the recorded one. Its last parts may come behind that.
let answered = -80;

function endAnswer() {
	answered = performance.now();
	$("live")?.remove();
}

function liveAnswer() {
	let live = $("live");
	if (!live) {
		live = make("li", "step assistant", make("span", "when"), make("div", "bubble", make("span", "who", "assistant"), make("div", "text")));
		live.id = "live";
		$("open").append(live);
	}
	return live.querySelector(".text");
}

const maxOutput = 64 << 10;

function addOutput(into, d) {
	if (!into) return;
	// Characters that hide or reorder others are shown as escapes.
	const text = (d.omitted ? "\n… output was left out …\n" : "") +
		d.text.replace(/\r\n/g, "\n").replace(/[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, c => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
	const low = into.scrollTop + into.clientHeight >= into.scrollHeight - 20;
	if (!into.firstChild) into.append("");
	into.firstChild.appendData(text);
	const over = into.firstChild.length - maxOutput;
	if (over > 0) into.firstChild.deleteData(0, over);
	if (low) into.scrollTop = into.scrollHeight;
}

function setState(next) {
	const now = $("state");
	if (!now || !next) return;
	const focus = now.contains(document.activeElement) ? document.activeElement.id : "";
	const was = now.dataset.look;
	now.replaceWith(next);
	if (focus) $(focus)?.focus({preventScroll: true});
	if (was !== next.dataset.look && next.dataset.look !== "waiting") announce(`Session: ${$("pill").textContent.replace(/^\s*\S\s*/, "")}`);
	if (next.dataset.look !== "running" && next.dataset.look !== "waiting") {
		endAnswer();
		$("open")?.replaceChildren();
	}
	if (!("ended" in next.dataset) && story) story.dataset.live = "";
	showFollow();
}

/* Questions. Their buttons work once they have been in view for a moment, so that a click
that was meant for something else answers nothing. */

const restTime = 700;
const inView = new WeakSet(), timers = new WeakMap(), answers = new Map();

const watchCards = new IntersectionObserver(entries => {
	for (const {target, isIntersecting} of entries) {
		if (isIntersecting) inView.add(target);
		else inView.delete(target);
		holdCard(target.closest(".card"));
	}
}, {threshold: 0.9});

function holdCard(card) {
	if (!card) return;
	clearTimeout(timers.get(card));
	const buttons = card.querySelectorAll("form button");
	for (const b of buttons) b.setAttribute("aria-disabled", "true");
	const row = card.querySelector(".answer");
	if (!row || !inView.has(row) || document.hidden || card.classList.contains("over")) return;
	timers.set(card, setTimeout(() => {
		for (const b of buttons) b.removeAttribute("aria-disabled");
	}, restTime));
}

function watchCard(card) {
	holdCard(card);
	const row = card.querySelector(".answer");
	if (row) watchCards.observe(row);
	card.querySelector(".longer")?.addEventListener("toggle", () => holdCard(card));
}

const cards = () => [...document.querySelectorAll("#questions .card:not(.over)")];

function setQuestions(next) {
	const now = $("questions");
	if (!now || !next) return;
	const coming = [...next.querySelectorAll(".card")], ids = new Set(coming.map(c => c.id));
	let changed = false;
	for (const card of cards()) {
		if (ids.has(card.id)) continue;
		settleCard(card);
		changed = true;
	}
	const added = coming.filter(c => !$(c.id));
	for (const card of added) {
		now.append(card);
		watchCard(card);
	}
	setText(now.querySelector("h2"), next.querySelector("h2").textContent);
	now.hidden = !now.querySelector(".card");
	if (changed || added.length) for (const card of cards()) holdCard(card); // they may have moved
	if (added.length) announce(`A question waits: ${added[0].querySelector("h3").textContent}`);
	showTimes();
	showTitle();
}

// A card whose question was answered goes, but not from under somebody who types in it.
function settleCard(card) {
	card.classList.add("over");
	holdCard(card);
	const note = make("p", "note answered", `${card.querySelector("h3").textContent}: `, make("b", "", answers.get(card.dataset.call) ?? "answered"));
	note.dataset.call = card.dataset.call;
	if (inField(document.activeElement) && card.contains(document.activeElement) && !card.matches(".mine")) {
		card.prepend(note);
		return card.addEventListener("focusout", () => {
			card.remove();
			$("questions").hidden = !$("questions").querySelector(".card");
		}, {once: true});
	}
	const had = card.contains(document.activeElement);
	card.remove();
	for (const old of [...document.querySelectorAll("main>.answered")].slice(2)) old.remove();
	$("questions").after(note);
	if (had) (cards()[0]?.querySelector(".answer") ?? main).focus({preventScroll: true});
}

// Keeps who answered a call's question, for the note that replaces the card.
function noteAnswer(call, step) {
	const asked = [...step.querySelectorAll("p.asked")].at(-1);
	if (!call || !asked) return;
	const words = [...asked.childNodes].filter(n => n.nodeType === Node.TEXT_NODE).map(n => n.data).join(" ").trim();
	if (words.startsWith("asked,")) return;
	answers.set(call, words);
	if (answers.size > 50) answers.delete(answers.keys().next().value);
	for (const note of document.querySelectorAll(".answered")) if (note.dataset.call === call) setText(note.querySelector("b"), words);
}

/* The title says how many questions wait; so it does in a hidden tab, which keeps no
stream open. */

const title = document.title;
let attention;

function showTitle(waiting = cards().length || Number($("list")?.dataset.waiting ?? 0)) {
	const text = waiting ? `(${waiting}) ${title}` : title;
	if (document.title !== text) document.title = text;
}

async function ask() {
	await get("/attention").then(text => showTitle(JSON.parse(text).waiting)).catch(() => {}); // next time
	if (document.hidden) attention = setTimeout(ask, 15000);
}

function showOrHide() {
	clearTimeout(attention);
	if (document.hidden) {
		disconnect();
		clearTimeout(lost);
		lost = undefined;
		attention = setTimeout(ask, 15000);
		return;
	}
	tries = 0;
	connect();
	showTimes();
	showTitle();
	for (const card of cards()) holdCard(card);
}

/* The list of sessions. */

async function refreshList() {
	const list = $("list");
	if (document.hidden || list.contains(document.activeElement) || location.search.includes("before=")) return;
	const next = parsePage(await get(location.pathname + location.search)).getElementById("list");
	if (!next || next.outerHTML === list.outerHTML) return;
	const waited = Number(list.dataset.waiting);
	list.replaceWith(next);
	if (Number(next.dataset.waiting) > waited) announce("A question waits.");
	showTimes();
	showTitle();
}

/* Keys. */

const keys = {
	j: () => moveBy(1),
	k: () => moveBy(-1),
	n: () => story && find(new URLSearchParams({failure: "next", after: stepNumber(here)})),
	"/": () => $("search")?.focus(),
	a() {
		const card = cards()[0];
		if (!card) return document.querySelector(".rows .waiting a")?.focus();
		const row = card.querySelector(".answer") ?? card, {top, bottom} = row.getBoundingClientRect();
		if (top < 0 || bottom > innerHeight || !inView.has(row)) row.scrollIntoView({block: "nearest", behavior: "instant"});
		row.focus({preventScroll: true});
	},
	"?": () => $("help").showModal(),
};

function useKeys() {
	const box = $("keyswitch");
	try {
		box.checked = localStorage.getItem("keys") !== "off";
	} catch { /* without storage they are on */ }
	box.addEventListener("change", () => {
		try {
			localStorage.setItem("keys", box.checked ? "on" : "off");
		} catch { /* for this page, then */ }
	});
	if ($("keys")) {
		$("keys").hidden = false;
		$("keys").addEventListener("click", () => $("help").showModal());
	}
	document.addEventListener("keydown", e => {
		if (!box.checked || e.defaultPrevented || e.ctrlKey || e.metaKey || e.altKey || e.isComposing || e.repeat && !"jk".includes(e.key)) return;
		if (inField(e.target) || $("help").open || !Object.hasOwn(keys, e.key)) return;
		e.preventDefault();
		keys[e.key]();
	});
}

/* The beginning. */

async function startStory() {
	history.scrollRestoration = "manual";
	last = tailFrom = Number(story.dataset.after);
	ended = !("live" in story.dataset);
	for (const chunk of [...story.children]) {
		if (isAway(chunk)) setAway(chunk);
		else fill(chunk, [...chunk.querySelectorAll(".step")], true);
	}
	for (const s of story.querySelectorAll("[data-call]")) $(`open-${s.dataset.call}`)?.remove();
	for (const id of ["prevfailure", "nextfailure"]) {
		$(id).addEventListener("click", e => {
			if (e.ctrlKey || e.metaKey || e.shiftKey) return;
			e.preventDefault();
			find(new URLSearchParams({failure: id.slice(0, 4), after: stepNumber(here)}));
		});
	}
	$("follow").addEventListener("click", () => {
		following = true;
		keepUp();
	});
	if (!jumpToHash()) {
		if (Number(story.dataset.at)) jump(Number(story.dataset.at));
		else if (!ended) following = true;
	}
	keepUp();
	addEventListener("scroll", () => {
		following = !ended && atEnd();
		showFollow();
	}, {passive: true});
	addEventListener("hashchange", jumpToHash);
	if ("reading" in story.dataset) await readRest();
}

addEventListener("hashchange", signIn);
signIn();
useKeys();
showTimes();
setInterval(() => document.hidden || showTimes(), 1000);
for (const card of cards()) watchCard(card);
showTitle();
if (story) startStory().then(connect);
else if (tabs) ended = "ended" in $("state").dataset;
if ($("list")) setInterval(() => (Math.round(performance.now() / 1000) % 5 === 0 || "reading" in $("list").dataset) && refreshList().catch(() => {}), 1000);
document.addEventListener("visibilitychange", showOrHide);
addEventListener("online", showOrHide);
showOrHide();
