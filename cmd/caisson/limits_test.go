package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
)

// limitedModel is a model that calls a tool in each answer, unless it is offered none.
type limitedModel struct {
	requests, answered atomic.Int64
	// bounds has the max_completion_tokens of the requests.
	bounds []int64
	// same makes all calls the same, silent leaves out the usage, and hang makes the
	// second request wait for its end.
	same, silent, hang bool
	input              int64
	server             *httptest.Server
}

func newLimitedModel(t *testing.T, configure func(*limitedModel)) *limitedModel {
	m := &limitedModel{input: 1000}
	if configure != nil {
		configure(m)
	}
	m.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := m.requests.Add(1)
		var req struct {
			Tools     []any `json:"tools"`
			MaxTokens int64 `json:"max_completion_tokens"`
			Old       int64 `json:"max_tokens"`
		}
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(body, &req)
		}
		if err != nil {
			t.Error(err)
		}
		m.bounds = append(m.bounds, max(req.MaxTokens, req.Old))
		if m.hang && n == 2 {
			<-r.Context().Done()
			return
		}
		path := fmt.Sprintf("d%d", n)
		if m.same {
			path = "."
		}
		message := fmt.Sprintf(`{"content":"Looking.","tool_calls":[{"id":"call_%d","type":"function","function":{"name":"list_dir","arguments":"{\"path\":\"%s\"}"}}]}`, n, path)
		if len(req.Tools) == 0 {
			message = `{"content":"So far."}`
		}
		m.answered.Add(1)
		usage := fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"completion_tokens":100}`, m.input)
		if m.silent {
			usage = ""
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"model":"m","choices":[{"message":%s,"finish_reason":"stop"}]%s}`, message, usage)
	}))
	t.Cleanup(m.server.Close)
	return m
}

type limitedRun struct {
	status int
	end    record.SessionEnded
	// warned has the budget warnings, texts the model's texts.
	warned []record.BudgetWarning
	output string
	errs   string
}

// runLimited runs a task with a model and settings, in its own state directory unless
// env names one.
func runLimited(t *testing.T, m *limitedModel, settings, profile string, env ...string) limitedRun {
	t.Helper()
	w := newWorld(t, "  - text: done\n")
	config := filepath.Join(filepath.Dir(w.dir), "limits.yaml")
	text := fmt.Sprintf("model: main\npolicy: {preset: readonly}\nstream: false\n%s\nmodels: {main: {model: m, base_url: %q, max_retries: 0, %s}}\n", settings, m.server.URL+"/v1", profile)
	must(t, os.WriteFile(config, []byte(text), 0o600))
	w.env = slices.Concat(w.env, []string{"CAISSON_CONFIG=" + config}, env)
	var r limitedRun
	r.status, r.output, r.errs = w.call("run", "--json", "--workspace", w.dir, "task")
	for line := range strings.Lines(r.output) {
		var rec record.Record
		must(t, json.Unmarshal([]byte(line), &rec))
		var err error
		switch rec.Kind {
		case record.KindSessionEnded:
			err = json.Unmarshal(rec.Payload, &r.end)
		case record.KindBudgetWarning:
			var p record.BudgetWarning
			err = json.Unmarshal(rec.Payload, &p)
			r.warned = append(r.warned, p)
		}
		must(t, err)
	}
	return r
}

// TestEachLimitEndsARun runs into each limit: the end has its reason, the limit, the
// full usage and exit status 53, and a closing answer if one is due.
func TestEachLimitEndsARun(t *testing.T) {
	const priced = "max_output_tokens: 2000, price: {input: 1, output: 1}"
	for name, tt := range map[string]struct {
		settings, profile string
		model             func(*limitedModel)
		want              record.Limit // except Used and Needed
		rounds            int64
		closed            bool
	}{
		"rounds":     {settings: "limits: {max_rounds: 2}", want: record.Limit{Kind: limits.KindRounds, Limit: 2}, rounds: 2, closed: true},
		"tool calls": {settings: "limits: {max_tool_calls: 2}", want: record.Limit{Kind: limits.KindToolCalls, Limit: 2}, rounds: 3, closed: true},
		"rounds, and too few tokens for a closing": {
			settings: "limits: {max_rounds: 1, max_tokens: 30000}", profile: priced, model: func(m *limitedModel) { m.input = 29_000 },
			want: record.Limit{Kind: limits.KindRounds, Limit: 1}, rounds: 1,
		},
		"tokens":           {settings: "limits: {max_tokens: 40000}", profile: priced, want: record.Limit{Kind: limits.KindTokens, Limit: 40000}},
		"cost":             {settings: "limits: {max_cost_usd: 0.04}", profile: priced, want: record.Limit{Kind: limits.KindCost, Limit: 40000}},
		"wall time":        {settings: "limits: {timeout: 5s}", model: func(m *limitedModel) { m.hang = true }, want: record.Limit{Kind: limits.KindWallTime, Limit: 5000}, rounds: 1},
		"session's calls":  {settings: "limits: {session: {max_tool_calls: 2}}", want: record.Limit{Kind: limits.KindToolCalls, Limit: 2}, rounds: 3, closed: true},
		"session's tokens": {settings: "limits: {session: {max_tokens: 40000}}", profile: priced, want: record.Limit{Kind: limits.KindTokens, Limit: 40000}},
		"session's cost":   {settings: "limits: {session: {max_cost_usd: 0.04}}", profile: priced, want: record.Limit{Kind: limits.KindCost, Limit: 40000}},
		"session's time":   {settings: "limits: {session: {timeout: 5s}}", model: func(m *limitedModel) { m.hang = true }, want: record.Limit{Kind: limits.KindWallTime}, rounds: 1},
		"tokens without a count": {
			settings: "limits: {max_tokens: 60000}", profile: priced, model: func(m *limitedModel) { m.silent = true }, want: record.Limit{Kind: limits.KindTokens, Limit: 60000},
		},
		"requests of a day": {settings: "limits: {day: {max_requests: 3}}", want: record.Limit{Kind: limits.KindRequests, Limit: 3, Period: limits.PeriodDay}, rounds: 3},
		"tokens of a day":   {settings: "limits: {day: {max_tokens: 40000}}", profile: priced, want: record.Limit{Kind: limits.KindTokens, Limit: 40000, Period: limits.PeriodDay}},
		"cost of a month":   {settings: "limits: {month: {max_cost_usd: 0.04}}", profile: priced, want: record.Limit{Kind: limits.KindCost, Limit: 40000, Period: limits.PeriodMonth}},
		"a profile's day":   {profile: "limits: {day: {max_requests: 3}}", want: record.Limit{Kind: limits.KindRequests, Limit: 3, Period: limits.PeriodDay, Profile: "main"}, rounds: 3},
		"the first that trips": {
			settings: "limits: {month: {max_requests: 3}}", profile: "limits: {day: {max_requests: 3}}",
			want: record.Limit{Kind: limits.KindRequests, Limit: 3, Period: limits.PeriodDay, Profile: "main"}, rounds: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newLimitedModel(t, tt.model)
			r := runLimited(t, m, tt.settings, tt.profile)
			if r.status != exitLimit || r.end.Reason != "limit" || !r.end.Truncated || r.end.ExitStatus != exitLimit || r.end.Limit == nil || (r.end.Answer == "So far.") != tt.closed {
				t.Fatalf("status %d, ended as %s: %+v\n%s", r.status, r.end.Reason, r.end.Limit, r.errs)
			}
			got := *r.end.Limit
			if got.Kind != tt.want.Kind || got.Limit != tt.want.Limit && tt.want.Limit > 0 || got.Period != tt.want.Period || got.Profile != tt.want.Profile || (got.Until != nil) != (got.Period != "") {
				t.Errorf("limit %+v, want %+v", got, tt.want)
			}
			if tt.rounds > 0 && r.end.Usage.Rounds != tt.rounds {
				t.Errorf("%d rounds, want %d", r.end.Usage.Rounds, tt.rounds)
			}
			answered := m.answered.Load()
			if !m.silent && (r.end.Usage.InputTokens != answered*m.input || r.end.Usage.OutputTokens != answered*100 || answered == 0) {
				t.Errorf("usage %+v of %d requests", r.end.Usage, answered)
			}
			closed := strings.Contains(r.output, "So far.")
			if closed != tt.closed {
				t.Errorf("closing answer: %v, want %v", closed, tt.closed)
			}
			if !strings.Contains(r.errs, "limit was reached: ") || got.Until != nil && !strings.Contains(r.errs, "It is free again at "+got.Until.Format("2006-01-02")+" 00:00 UTC") {
				t.Errorf("the user is told %q", r.errs)
			}
		})
	}
}

// TestStuckRunCloses: a run that repeats itself has a closing answer.
func TestStuckRunCloses(t *testing.T) {
	r := runLimited(t, newLimitedModel(t, func(m *limitedModel) { m.same = true }), "", "")
	if r.status != exitFailed || r.end.Reason != "stuck" || !r.end.Truncated || r.end.Usage.Rounds == 0 || !strings.Contains(r.output, "So far.") {
		t.Errorf("status %d, ended as %s, %+v", r.status, r.end.Reason, r.end.Usage)
	}
}

// TestCeilingsCountAcrossRuns: runs of one state directory share a ceiling, four fifths
// of it are a warning, and a later run begins no request.
func TestCeilingsCountAcrossRuns(t *testing.T) {
	state := "XDG_STATE_HOME=" + t.TempDir()
	const settings = "limits: {max_rounds: 4, day: {max_requests: 6}}"
	first := newLimitedModel(t, nil)
	r := runLimited(t, first, settings, "", state)
	if r.end.Limit == nil || r.end.Limit.Kind != limits.KindRounds || first.requests.Load() != 5 || len(r.warned) != 1 {
		t.Fatalf("first run: %+v, %d requests, warned %+v", r.end.Limit, first.requests.Load(), r.warned)
	}
	second := newLimitedModel(t, nil)
	r = runLimited(t, second, settings, "", state)
	if r.status != exitLimit || r.end.Limit.Kind != limits.KindRequests || r.end.Limit.Used != 6 || second.requests.Load() != 1 {
		t.Errorf("second run: %+v, %d requests", r.end.Limit, second.requests.Load())
	}
	if len(r.warned) != 1 || r.warned[0].Period != limits.PeriodDay || !strings.Contains(r.warned[0].String(), "5 of 6 requests per day used") {
		t.Errorf("second run: warnings %+v", r.warned)
	}
	third := newLimitedModel(t, nil)
	if r = runLimited(t, third, settings, "", state); r.status != exitLimit || third.requests.Load() != 0 {
		t.Errorf("third run: status %d, %d requests", r.status, third.requests.Load())
	}
	// Control: without the ceiling, the same directory allows the run.
	if r = runLimited(t, third, "limits: {max_rounds: 1}", "", state); third.requests.Load() != 2 {
		t.Errorf("without the ceiling: status %d, %d requests", r.status, third.requests.Load())
	}
}

// TestNoCeilingTouchesNothing: runs without a ceiling, and replays, make no ledger and
// ignore a damaged one, which otherwise ends a run before it begins.
func TestNoCeilingTouchesNothing(t *testing.T) {
	state := t.TempDir()
	m := newLimitedModel(t, nil)
	runLimited(t, m, "limits: {max_rounds: 1}", "", "XDG_STATE_HOME="+state)
	dir := filepath.Join(state, "caisson", "usage")
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("%s: %v", dir, err)
	}
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "ledger.json"), []byte("{"), 0o600))
	before := m.requests.Load()
	r := runLimited(t, m, "limits: {day: {max_requests: 100}}", "", "XDG_STATE_HOME="+state)
	if r.status != exitConfig || m.requests.Load() != before || !strings.Contains(r.errs, "is damaged") || !strings.Contains(r.errs, "remove it") {
		t.Errorf("with a damaged ledger: status %d, %d requests\n%s", r.status, m.requests.Load()-before, r.errs)
	}
	if r = runLimited(t, m, "limits: {max_rounds: 1}", "", "XDG_STATE_HOME="+state); r.status != exitLimit || m.requests.Load() == before {
		t.Errorf("control, without a ceiling: status %d\n%s", r.status, r.errs)
	}
}

// TestCeilingOfCostNeedsAPrice: every cost ceiling refuses a model of unknown price.
func TestCeilingOfCostNeedsAPrice(t *testing.T) {
	m := newLimitedModel(t, nil)
	for where, tt := range map[string]struct{ settings, profile string }{
		"limits.max_cost_usd":                   {"limits: {max_cost_usd: 1}", ""},
		"limits.session.max_cost_usd":           {"limits: {session: {max_cost_usd: 1}}", ""},
		"limits.day.max_cost_usd":               {"limits: {day: {max_cost_usd: 1}}", ""},
		"limits.month.max_cost_usd":             {"limits: {month: {max_cost_usd: 1}}", ""},
		"models.main.limits.day.max_cost_usd":   {"", "limits: {day: {max_cost_usd: 1}}"},
		"models.main.limits.month.max_cost_usd": {"", "limits: {month: {max_cost_usd: 1}}"},
	} {
		r := runLimited(t, m, tt.settings, tt.profile)
		if r.status != exitConfig || !strings.Contains(r.errs, where) || m.requests.Load() != 0 {
			t.Errorf("%s: status %d\n%s", where, r.status, r.errs)
		}
	}
}
