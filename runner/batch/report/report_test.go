package report

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/tools"
)

// newSample returns a batch of two models, with all outcomes if there are enough tasks.
func newSample(tasks, attempts int) (batch.Spec, []batch.Result) {
	began := time.Unix(1_800_000_000, 0).UTC()
	s := batch.Spec{Created: began, Version: "1.0", Backend: "gvisor", Agents: []string{"openai/gpt-5", "ollama/fast"}, Attempts: attempts}
	var results []batch.Result
	for i := range tasks {
		id := fmt.Sprintf("shop-%03d", i)
		s.Tasks = append(s.Tasks, batch.SpecTask{ID: id, Checksum: "sha256:" + id})
		if i > 0 && i%50 == 0 {
			s.Tasks[i].Unsupported = []string{"needs 2 GPUs"}
			continue
		}
		for a, agent := range s.Agents {
			for attempt := 1; attempt <= attempts; attempt++ {
				results = append(results, newSampleResult(batch.Key{Task: id, Agent: agent, Attempt: attempt}, began, i*7+a*3+attempt*(i+a)))
			}
		}
	}
	return s, results
}

func newSampleResult(k batch.Key, began time.Time, n int) batch.Result {
	r := batch.Result{Key: k, Model: k.Agent, Outcome: batch.Passed, Reward: new(1.0), Started: began, Finished: began.Add(time.Duration(30+n%400) * time.Second)}
	r.Usage = limits.Usage{CostMicroUSD: new(int64(20_000 + 1000*(n%500)))}
	switch {
	case n%97 == 1:
		r.Outcome, r.Class, r.Cause, r.Reward = batch.Infrastructure, batch.Provider, "the provider answered 503", nil
		r.Faults = []batch.Fault{{Class: batch.SandboxStart, Cause: "no space left on device"}, {Class: batch.Provider, Cause: "the provider answered 503"}}
	case n%11 == 2:
		r.Outcome, r.Limit, r.Reward = batch.Limit, "max_rounds", new(0.0)
	case n%13 == 3:
		r.Outcome, r.Class, r.Cause, r.Reward = batch.Failed, batch.RewardMissing, "the verifier wrote no reward", nil
	case n%3 == 0:
		r.Outcome, r.Reward = batch.Failed, new(0.25)
	}
	return r
}

func render(t testing.TB, title string, s batch.Spec, results []batch.Result) string {
	t.Helper()
	var out bytes.Buffer
	if err := Write(&out, title, s, results); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// textOf returns a page's text with single spaces.
func textOf(t testing.TB, page string) string {
	t.Helper()
	var b strings.Builder
	for n := range parse(t, page).Descendants() {
		if n.Type == html.TextNode && n.Parent.Data != "style" {
			b.WriteString(n.Data + " ")
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

func parse(t testing.TB, page string) *html.Node {
	t.Helper()
	doc, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// TestSamples renders pages with 1 and with 2,000 trials. With CAISSON_SAMPLE_REPORTS,
// it writes them to that directory for people to look at.
func TestSamples(t *testing.T) {
	for _, c := range []struct {
		name            string
		tasks, attempts int
		rows            int
	}{{"one", 1, 1, 1}, {"many", 255, 4, 2000}} {
		s, results := newSample(c.tasks, c.attempts)
		if c.rows == 1 {
			s.Agents, results = s.Agents[:1], results[:1]
		}
		page := render(t, "shop-48", s, results)
		if rows := strings.Count(page, `<tr class="trial `); rows != c.rows {
			t.Errorf("%d rows of trials, want %d", rows, c.rows)
		}
		if text := textOf(t, page); c.rows > 1 && !strings.Contains(text, "All trials ollama/fast 636 / 990 0.643 0.61 – 0.67 250 tasks") {
			t.Error("the better agent is not the first one of the leaderboard")
		}
		if dir := os.Getenv("CAISSON_SAMPLE_REPORTS"); dir != "" {
			if err := os.WriteFile(dir+"/"+c.name+".html", []byte(page), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestFigures: each figure has its denominator, and the page names the trials that no
// rate counts.
func TestFigures(t *testing.T) {
	s, _ := newSample(1, 1)
	s.Attempts, s.Tasks = 2, nil
	began := s.Created
	var results []batch.Result
	for i := range 8 {
		id := fmt.Sprintf("t%d", i)
		s.Tasks = append(s.Tasks, batch.SpecTask{ID: id, Checksum: id})
		for attempt := 1; attempt <= 2; attempt++ {
			a := newSampleResult(batch.Key{Task: id, Agent: s.Agents[0], Attempt: attempt}, began, 22) // passes
			b := newSampleResult(batch.Key{Task: id, Agent: s.Agents[1], Attempt: attempt}, began, 21) // fails
			a.Usage.CostMicroUSD, b.Usage.CostMicroUSD = new(int64(250_000)), nil
			results = append(results, a, b)
		}
	}
	s.Tasks = append(s.Tasks, batch.SpecTask{ID: "huge", Unsupported: []string{"needs 2 GPUs"}})
	lost := newSampleResult(results[0].Key, began, 98) // the infrastructure fails it
	lost.Usage.CostMicroUSD = new(int64(250_000))
	results[0] = lost
	results[6].Outcome, results[6].Class, results[6].Cause = batch.Suspect, batch.VerifierNetwork, "mirror.example:80 (connect)"
	results[3].Faults = []batch.Fault{{Class: batch.SandboxStart, Cause: "no space left on device"}}
	results = results[:len(results)-1]
	results = append(results, batch.Result{Key: batch.Key{Task: "t0", Agent: "nop", Attempt: 1}, Outcome: batch.Failed})
	text := textOf(t, render(t, "x", s, results))
	for _, want := range []string{
		"2 agents × 9 tasks × 2 attempts",
		"32 trials: 29 judged , 1 failed by the infrastructure, 1 suspect, 1 cancelled or not run; 1 task unsupported",
		"1 trial without a result", "1 result of agents that the last command did not name",
		"openai/gpt-5 14 / 14 1.000", "ollama/fast 0 / 15 0.000", "$0.25 $4.00 in all", "unknown $0.00 in all, 15 unknown",
		"14 passed · 1 infrastructure · 1 suspect", "15 failed · 1 not run",
		"openai/gpt-5 is better than ollama/fast by 100.0 points on 8 tasks", "8 tasks in both, 1 left out. openai/gpt-5 is better on 8, worse on 0, same on 0; McNemar's exact test decides",
		"or to the first. Task openai/gpt-5 ollama/fast t0 1/1 1 infrastructure 0/2 t1 1/1 1 suspect 0/2", "t7 2/2 0/1 Failures of",
		"Without a known cost or a judged trial, and not shown: 1 agent.", "openai/gpt-5 $0.25 14 / 14 1.000 0.68 – 1.00 8 tasks", "huge no trial of openai/gpt-5 was judged",
		"t1 openai/gpt-5 2 verifier_network mirror.example:80 (connect)", "t1 2 openai/gpt-5 suspect verifier_network",
		"provider the provider answered 503 1 1", "sandbox_start no space left on device 2 0",
		"Unsupported tasks They can't be run here, and are in no denominator. huge needs 2 GPUs",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// hostile are texts that would be elements, attributes, styles or rules, or be
// invisible.
var hostile = []string{
	`<script>alert(1)</script>`,
	`<img src=x onerror=alert(1)>`,
	`"><svg/onload=alert(1)>`,
	`' onmouseover='alert(1)`,
	`</td></tr></table></details></style></title><iframe src="https://evil.example/"></iframe>`,
	`--><base href="https://evil.example/"><!--`,
	`javascript:alert(1)//{{.}}`,
	`../../../etc/passwd`,
	`;background:url(https://evil.example/)}body{display:none}`,
	"\x1b]0;owned\x07\x1b[2J",
	"\u202etxt.exe\u2066 \u200b\u2028 \U000e0041 \ufeff",
	"\xff\xfe not UTF-8 \x00",
}

// newHostileBatch returns a batch with a text everywhere that tasks, models, sandboxes
// and commands write.
func newHostileBatch(text string) (batch.Spec, []batch.Result) {
	s := batch.Spec{Version: text, Backend: text, Agents: []string{text, text + "2"}, Attempts: 2, Tasks: []batch.SpecTask{{ID: text, Checksum: text, Source: text}, {ID: text + "!", Unsupported: []string{text, text}}}}
	var results []batch.Result
	for i, o := range []batch.Outcome{batch.Passed, batch.Failed, batch.Limit, batch.Suspect, batch.Infrastructure} {
		results = append(results, batch.Result{
			Key: batch.Key{Task: text, Agent: s.Agents[min(i/2, 1)], Attempt: 1 + i - 2*min(i/2, 1)}, Name: text, Checksum: text, Model: text, Outcome: o, Class: batch.Class(text), Cause: text,
			Limit: text, Faults: []batch.Fault{{Class: batch.Class(text), Cause: text}}, Rewards: map[string]float64{text: 1}, Image: text, Backend: text, CostUSD: text,
		})
	}
	return s, results
}

// shapeOf returns a page without its texts: elements, attribute names, and the values
// of attributes that could load, run or hide something.
func shapeOf(t *testing.T, page string) []string {
	t.Helper()
	var out []string
	for n := range parse(t, page).Descendants() {
		switch n.Type {
		case html.CommentNode:
			out = append(out, "comment")
		case html.ElementNode:
			shape := n.Data
			for _, a := range n.Attr {
				switch a.Key {
				case "href":
					a.Val, _, _ = strings.Cut(a.Val, "/")
					shape += " href=" + a.Val
				case "value": // an agent's name in a form
					shape += " value"
				default:
					shape += " " + a.Key + "=" + a.Val
				}
			}
			out = append(out, shape)
		case html.TextNode:
			if n.Parent.Data == "style" {
				out = append(out, n.Data)
			}
		}
	}
	return out
}

// TestHostileTextIsText: except for texts and names of directories, a page full of
// hostile text equals one with a harmless word. The control is unescaped text.
func TestHostileTextIsText(t *testing.T) {
	pageOf := func(text string) string {
		s, results := newHostileBatch(text)
		p, err := newComparePage(ViewOptions{Title: text, Home: "/b"}, s, results, s.Agents[0], s.Agents[1])
		if err != nil {
			t.Fatal(err)
		}
		var comparison bytes.Buffer
		if err := pageTemplate().ExecuteTemplate(&comparison, "compare", p); err != nil {
			t.Fatal(err)
		}
		return render(t, text, s, results) + comparison.String()
	}
	word := pageOf("word")
	want := shapeOf(t, word)
	if len(want) < 150 || strings.Count(word, "word") < 30 {
		t.Fatalf("%d elements, the word %d times: something is missing", len(want), strings.Count(word, "word"))
	}
	for _, text := range hostile {
		t.Run(fmt.Sprintf("%q", text), func(t *testing.T) {
			page := pageOf(text)
			if diff := cmp.Diff(want, shapeOf(t, page)); diff != "" {
				t.Errorf("the page has something of the text (-word +hostile):\n%s", diff)
			}
			if _, hidden := tools.DisplayLines(page); hidden {
				t.Error("the page has invisible characters")
			}
			if strings.Contains(page, "ZgotmplZ") {
				t.Error("a text is where a browser could obey it, and was replaced")
			}
			naive := strings.ReplaceAll(word, "word", text)
			if strings.ContainsAny(text, "<") && cmp.Equal(want, shapeOf(t, naive)) {
				t.Error("control: the unescaped text leaves the page's shape unchanged")
			}
		})
	}
}

// TestPageLoadsNothing checks everything that a page could ask a browser for, and
// links.
func TestPageLoadsNothing(t *testing.T) {
	s, results := newSample(60, 2)
	page := render(t, "x", s, results)
	ids, policy := map[string]bool{}, ""
	var local, dirs []string
	for n := range parse(t, page).Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		if slices.Contains([]string{"script", "link", "img", "image", "iframe", "object", "embed", "form", "base", "audio", "video", "source", "template", "use"}, n.Data) {
			t.Errorf("there is a <%s>", n.Data)
		}
		for _, a := range n.Attr {
			switch {
			case strings.HasPrefix(a.Key, "on"), a.Key == "src", a.Key == "srcset", a.Key == "style", a.Key == "action":
				t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
			case a.Key == "href" && strings.HasPrefix(a.Val, "#"):
				local = append(local, a.Val[1:])
			case a.Key == "href":
				dirs = append(dirs, a.Val)
			case a.Key == "id":
				if ids[a.Val] {
					t.Errorf("two elements with id %s", a.Val)
				}
				ids[a.Val] = true
			case a.Key == "content" && strings.Contains(a.Val, "default-src"):
				policy = a.Val
			}
		}
	}
	if !strings.HasPrefix(policy, "default-src 'none'; style-src 'sha256-") || strings.Contains(policy, "script-src") || strings.Contains(policy, "unsafe") {
		t.Errorf("policy %q", policy)
	}
	for _, id := range local {
		if !ids[id] {
			t.Errorf("a link to #%s, which is not on the page", id)
		}
	}
	var want []string
	for _, r := range results {
		want = append(want, "trials/"+r.Key.Name()+"/")
	}
	slices.Sort(want)
	slices.Sort(dirs)
	dirs = slices.Compact(dirs) // the matrix links to them too
	if diff := cmp.Diff(want, dirs); diff != "" || len(local) < 10 {
		t.Errorf("%d links on the page, and to trials (-want +got):\n%s", len(local), diff)
	}
	for _, word := range []string{"url(", "@import", "expression("} {
		if strings.Contains(pageStyle, word) {
			t.Errorf("the style has %s", word)
		}
	}
	for _, id := range []string{"show-passed", "show-failed", "show-limit", "show-infrastructure", "show-a0", "show-a1"} {
		if !ids[id] || !strings.Contains(page, "body:has(#"+id+":not(:checked))") {
			t.Errorf("the filter %s has no box or no rule", id)
		}
	}
}

// TestBounds: a page counts the trials that it doesn't list.
func TestBounds(t *testing.T) {
	s, results := newSample(maxTrials/2+300, 1)
	s.Agents = append(s.Agents, "c", "d", "e", "f", "g")
	for i := range results {
		results[i].Faults = []batch.Fault{{Class: batch.Machine, Cause: fmt.Sprint(i)}}
	}
	if len(results) <= maxTrials {
		t.Fatalf("%d trials", len(results))
	}
	page := render(t, "x", s, results)
	text := textOf(t, page)
	for _, want := range []string{
		fmt.Sprintf("%d more trials are in results.jsonl", len(results)-maxTrials), "more causes are in results.jsonl", "Not compared here: 1 model with lower rates",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if n := strings.Count(page, `<tr class="trial `); n != maxTrials {
		t.Errorf("%d rows", n)
	}
	if text := textOf(t, render(t, "x", batch.Spec{}, nil)); !strings.Contains(text, "0 trials: 0 judged") {
		t.Errorf("an empty batch: %s", text)
	}
}

// TestCells: a cell leads to the first trial that explains its number.
func TestCells(t *testing.T) {
	for name, c := range map[string]struct {
		outcomes []batch.Outcome
		want     string // numbers, the attempt that the link leads to, and undecided trials
	}{
		"one":             {[]batch.Outcome{batch.Failed}, "0/1 1"},
		"passed":          {[]batch.Outcome{batch.Passed, batch.Passed}, "2/2 1"},
		"failed second":   {[]batch.Outcome{batch.Passed, batch.Limit, batch.Failed}, "1/3 2"},
		"failed first":    {[]batch.Outcome{batch.Failed, batch.Passed, batch.Failed}, "1/3 1"},
		"undecided first": {[]batch.Outcome{batch.Suspect, batch.Infrastructure, batch.Passed, batch.Suspect}, "1/1 3 suspect×2 1 infrastructure×1 2"},
		"none judged":     {[]batch.Outcome{batch.Infrastructure}, "0/0 infrastructure×1 1"},
	} {
		var results []batch.Result
		attempts := map[string]int{"": 0}
		for i, o := range c.outcomes {
			r := batch.Result{Key: batch.Key{Task: "t", Agent: "a", Attempt: i + 1}, Outcome: o}
			results, attempts[trialDir(r)] = append(results, r), i+1
		}
		cell := newIndex(results, 0).cell("t", "a")
		got := fmt.Sprintf("%d/%d", cell.Passed, cell.Judged)
		if cell.Dir != "" {
			got += fmt.Sprintf(" %d", attempts[cell.Dir])
		}
		for _, u := range cell.Undecided {
			got += fmt.Sprintf(" %s×%d %d", u.Outcome, u.Count, attempts[u.Dir])
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestCostPlot: points are where their figures say, and labels don't cover each other.
func TestCostPlot(t *testing.T) {
	s, _ := newSample(1, 1)
	s.Agents, s.Tasks, s.Attempts = nil, []batch.SpecTask{{ID: "t"}}, 1
	var results []batch.Result
	for i := range maxPoints + 2 {
		s.Agents = append(s.Agents, fmt.Sprintf("m%02d", i))
		r := newSampleResult(batch.Key{Task: "t", Agent: s.Agents[i], Attempt: 1}, s.Created, 22) // passes
		r.Usage.CostMicroUSD = new(int64(100_000 * (i + 1)))
		if i == 0 {
			r.Outcome = batch.Failed
		}
		results = append(results, r)
	}
	free := newSampleResult(batch.Key{Task: "t", Agent: "free", Attempt: 1}, s.Created, 22)
	free.Usage.CostMicroUSD = nil
	s.Agents = append(s.Agents, "free")
	p := newPage(s, append(results, free)).Costs
	if p == nil || p.Max != "$1.70" || p.Half != "$0.85" || p.Left != 2 || p.Unknown != 1 || len(p.Points) != maxPoints {
		t.Fatalf("%+v", p)
	}
	last, labels := 0.0, []float64{}
	for i, d := range p.Points {
		if d.Y != plotTop || d.X <= last || d.X > plotRight || d.Top != plotTop || d.Height <= 0 {
			t.Errorf("point %d: %+v", i, d)
		}
		last, labels = d.X, append(labels, d.LabelY)
	}
	slices.Sort(labels)
	for i, y := range labels {
		if y < 0 || y > plotBottom || i > 0 && y-labels[i-1] < plotLine {
			t.Errorf("labels at %v", labels)
			break
		}
	}
	if two := newPage(batch.Spec{Agents: s.Agents[:2], Tasks: []batch.SpecTask{{ID: "t"}}, Attempts: 1}, results).Costs; len(two.Points) != 2 || two.Points[0].X != plotRight || two.Points[0].Anchor != "end" || two.Points[1].Y != plotBottom || two.Points[1].X != (plotLeft+plotRight)/2 {
		t.Errorf("two agents: %+v", two)
	}
	if none := newPage(batch.Spec{Agents: []string{"free"}, Attempts: 1}, []batch.Result{free}).Costs; none != nil {
		t.Errorf("without costs: %+v", none)
	}
}
