package bridge

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/bridge/mockmodel"
	"github.com/caisson-run/caisson/runner/ledger"
)

// streams are streamed requests of each protocol with a conversation of a size.
func streams(size int) map[Protocol][2]string {
	text := strings.Repeat("word ", size/5)
	return map[Protocol][2]string{
		Anthropic: {"/v1/messages", `{"model":"fast","stream":true,"max_tokens":100000,"messages":"` + text + `"}`},
		Responses: {"/v1/responses", `{"model":"fast","stream":true,"input":"` + text + `"}`},
		Chat:      {"/v1/chat/completions", `{"model":"fast","stream":true,"messages":"` + text + `"}`},
		Gemini:    {"/v1beta/models/fast:streamGenerateContent?alt=sse", `{"contents":"` + text + `"}`},
	}
}

// TestCutInStream checks that a provider that ignores the bound on the output is cut
// at the budget, that the agent is told why, and that its next request is refused with
// status 400.
func TestCutInStream(t *testing.T) {
	for p, request := range streams(20_000) {
		t.Run(string(p)+" lowered", func(t *testing.T) { testCut(t, p, request, 20_000) })
		t.Run(string(p), func(t *testing.T) { testCut(t, p, request, 60_000) })
	}
}

func testCut(t *testing.T, p Protocol, request [2]string, budget int64) {
	mock := &mockmodel.Model{Steps: []mockmodel.Step{{Text: "Some words that never come to an end. ", Endless: true}}}
	s := newSetup(t, p, mock, budget, nil)
	got := send(t, http.MethodPost, s.url+request[0], request[1])
	end := <-s.ended
	if got.status != 200 || !strings.Contains(got.body, "caisson: limit tokens reached") || !strings.HasSuffix(got.body, "\n\n") {
		t.Errorf("%d %q", got.status, got.body[max(0, len(got.body)-500):])
	}
	if end.Class != ClassBudget || end.Limit == nil || end.Limit.Kind != limits.KindTokens || !end.Estimated || string(end.Answer) != got.body {
		t.Errorf("%s %+v", end.Class, end.Limit)
	}
	if used := end.Usage.Tokens(); used < budget*95/100 || used > budget*105/100 {
		t.Errorf("used %d of %d", used, budget)
	}
	// What the agent got, counted by hand.
	if words := strings.Count(got.body, "words"); int64(words*len("Some words that never come to an end. ")/4) > budget-5_000 {
		t.Errorf("%d repetitions", words)
	}
	got = send(t, http.MethodPost, s.url+request[0], request[1])
	refused := <-s.ended
	if got.status != 400 || !strings.Contains(got.body, "caisson: limit tokens reached: used") || refused.Class != ClassBudget || refused.Status != 400 || len(mock.Requests()) != 1 {
		t.Errorf("the next request: %+v, %+v", got, refused)
	}
	checkDialect(t, p, got.body)
}

// TestExtends checks that an answer longer than its reservation isn't cut while
// something is left. It is the control of TestCutInStream.
func TestExtends(t *testing.T) {
	text := strings.Repeat("Some words. ", 20_000)
	for p, request := range streams(1000) {
		t.Run(string(p), func(t *testing.T) {
			mock := &mockmodel.Model{Steps: []mockmodel.Step{{Text: text}}}
			s := newSetup(t, p, mock, 1_000_000, func(o *Options) { o.Profiles[0].MaxOutputTokens = 2_000 })
			got := send(t, http.MethodPost, s.url+request[0], request[1])
			end := <-s.ended
			if got.status != 200 || end.Stage != Completed || end.Estimated || end.Usage.OutputTokens != 60_000 {
				t.Errorf("%s %s, %+v", end.Class, end.Message, end.Usage)
			}
			if used := s.bridge.opts.Ledger.(*loop.SharedBudget).Used(); used.Tokens() != end.Usage.Tokens() {
				t.Errorf("used %+v", used)
			}
		})
	}
}

// TestCostBudget checks that cost is bounded like tokens.
func TestCostBudget(t *testing.T) {
	mock := &mockmodel.Model{Steps: []mockmodel.Step{{Text: "Some words that never come to an end. ", Endless: true}}}
	shared, err := loop.NewSharedBudget(limits.Budget{CostMicroUSD: new(int64(100_000))}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newSetup(t, Chat, mock, 0, func(o *Options) {
		o.Profiles[0].Price = &limits.Price{Input: 1, CachedInput: 0.1, Output: 10}
		o.Ledger = shared
	})
	got := send(t, http.MethodPost, s.url+"/v1/chat/completions", streams(4000)[Chat][1])
	end := <-s.ended
	if cost := end.Usage.CostMicroUSD; cost == nil || *cost < 95_000 || *cost > 105_000 || end.Limit == nil || end.Limit.Kind != limits.KindCost || !strings.Contains(got.body, "limit cost_usd reached") {
		t.Errorf("%+v %+v", end, end.Usage)
	}
}

// TestLowered checks that the bound on the output is lowered to what is left.
func TestLowered(t *testing.T) {
	for p, request := range streams(4000) {
		mock := &mockmodel.Model{}
		s := newSetup(t, p, mock, 5_000, nil)
		if got := send(t, http.MethodPost, s.url+request[0], request[1]); got.status != 200 {
			t.Fatalf("%+v", got)
		}
		end := <-s.ended
		var bound int64
		q := newRequest(p, false)
		if err := q.rewrite(mock.Requests()[0].Body); err != nil {
			t.Fatal(err)
		}
		if bound, _ = q.output(); bound < 3_900 || bound > 4_000 {
			t.Errorf("%s: bound %d in %s", p, bound, end.Request[:50])
		}
	}
}

// TestThinkingBudget checks that a request isn't sent with a bound below that of its
// reasoning, which the provider would refuse without naming the budget.
func TestThinkingBudget(t *testing.T) {
	mock := &mockmodel.Model{}
	s := newSetup(t, Anthropic, mock, 5_000, nil)
	const body = `{"model":"fast","max_tokens":32000,"thinking":{"type":"enabled","budget_tokens":%d},"messages":[]}`
	if got := send(t, http.MethodPost, s.url+"/v1/messages", fmt.Sprintf(body, 8000)); got.status != 400 || !strings.Contains(got.body, "limit tokens") || len(mock.Requests()) > 0 {
		t.Errorf("%+v", got)
	}
	if got := send(t, http.MethodPost, s.url+"/v1/messages", fmt.Sprintf(body, 2000)); got.status != 200 {
		t.Errorf("%+v", got)
	}
}

// TestUsage checks that usage that is missing or can't be true counts as the estimate,
// and that other usage counts as it is.
func TestUsage(t *testing.T) {
	text := strings.Repeat("word ", 2000) // 10,000 bytes
	for _, tt := range []struct {
		name          string
		step          mockmodel.Step
		input, output int64 // 0 for about the estimate
	}{
		{"honest", mockmodel.Step{Usage: &limits.Usage{InputTokens: 2300, OutputTokens: 2111}}, 2300, 2111},
		{"cached", mockmodel.Step{Usage: &limits.Usage{InputTokens: 3, CachedInputTokens: 2297, OutputTokens: 2111}}, 2300, 2111},
		{"more than shown", mockmodel.Step{Usage: &limits.Usage{InputTokens: 5000, OutputTokens: 9000}}, 5000, 9000},
		{"none", mockmodel.Step{NoUsage: true}, 0, 0},
		{"zero", mockmodel.Step{Usage: &limits.Usage{}}, 0, 0},
		{"no output", mockmodel.Step{Usage: &limits.Usage{InputTokens: 2300}}, 2300, 0},
		{"one token of output", mockmodel.Step{Usage: &limits.Usage{InputTokens: 2300, OutputTokens: 1}}, 2300, 0},
		{"one token of input", mockmodel.Step{Usage: &limits.Usage{InputTokens: 1, OutputTokens: 2111}}, 0, 2111},
		{"negative", mockmodel.Step{Usage: &limits.Usage{InputTokens: -5000, OutputTokens: -9000}}, 0, 0},
	} {
		for _, e := range exchanges {
			t.Run(tt.name+" "+e.name, func(t *testing.T) {
				tt.step.Text = text
				s := newSetup(t, e.protocol, &mockmodel.Model{Steps: []mockmodel.Step{tt.step}}, 1_000_000, func(o *Options) { o.Models = map[string]string{"alias": "fast"} })
				body := strings.Replace(e.body, `"model"`, `"user":"`+strings.Repeat("word ", 2000)+`","model"`, 1)
				body = strings.Replace(body, `"contents"`, `"labels":"`+strings.Repeat("word ", 2000)+`","contents"`, 1)
				if got := send(t, http.MethodPost, s.url+e.path, body); got.status != 200 {
					t.Fatalf("%+v", got)
				}
				end := <-s.ended
				u := end.Usage
				input := u.InputTokens + u.CachedInputTokens + u.CacheWriteTokens
				if tt.input > 0 && input != tt.input || tt.input == 0 && (input < 2500 || input > 2700) {
					t.Errorf("input %+v", u)
				}
				if tt.output > 0 && u.OutputTokens != tt.output || tt.output == 0 && (u.OutputTokens < 2500 || u.OutputTokens > 2700) {
					t.Errorf("output %+v", u)
				}
				if end.Estimated != (tt.input == 0 || tt.output == 0) {
					t.Errorf("estimated %v", end.Estimated)
				}
				if used := s.bridge.opts.Ledger.(*loop.SharedBudget).Used(); used.Tokens() != u.Tokens() || used.Rounds != 1 {
					t.Errorf("used %+v", used)
				}
			})
		}
	}
}

// TestLearns checks that a provider whose tokens are shorter than 4 bytes is estimated
// by its last count.
func TestLearns(t *testing.T) {
	mock := &mockmodel.Model{Steps: []mockmodel.Step{{Usage: &limits.Usage{InputTokens: 20_000, OutputTokens: 5}}}}
	s := newSetup(t, Anthropic, mock, 35_000, nil)
	request := streams(40_000)[Anthropic]
	if got := send(t, http.MethodPost, s.url+request[0], request[1]); got.status != 200 {
		t.Fatalf("%+v", got)
	}
	<-s.ended
	// 10,000 tokens at 4 bytes each would fit into what is left.
	if got := send(t, http.MethodPost, s.url+request[0], request[1]); got.status != 400 {
		t.Errorf("%+v", got)
	}
}

// TestDayCeiling checks that sessions share the ceilings of a day, while they race.
func TestDayCeiling(t *testing.T) {
	const ceiling = 60_000
	state := t.TempDir()
	shared, err := ledger.Open(t.Context(), ledger.Options{StateDir: state, User: limits.Ceilings{Day: limits.Ceiling{Tokens: new(int64(ceiling))}}})
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	mock := &mockmodel.Model{Steps: []mockmodel.Step{{Text: strings.Repeat("Some words. ", 1000)}}}
	var sessions []*setup
	for range 2 {
		sessions = append(sessions, newSetup(t, Anthropic, mock, 0, func(o *Options) {
			own, err := loop.NewSharedBudget(limits.Budget{}, shared.ForUser("u"))
			if err != nil {
				t.Fatal(err)
			}
			o.Ledger = own
		}))
	}
	request := streams(8_000)[Anthropic]
	var wg sync.WaitGroup
	var mu sync.Mutex
	var total int64
	answered, limited := 0, 0
	for _, s := range sessions {
		for range 3 {
			wg.Go(func() {
				for range 20 {
					got := send(t, http.MethodPost, s.url+request[0], strings.Replace(request[1], "100000", "4000", 1))
					end := <-s.ended // of one of this session's requests
					mu.Lock()
					total += end.Usage.Tokens()
					mu.Unlock()
					if got.status != 200 {
						mu.Lock()
						limited++
						mu.Unlock()
						if got.status != 400 || !strings.Contains(got.body, "limit tokens per day reached") {
							t.Errorf("%d %s", got.status, got.body)
						}
						return
					}
					mu.Lock()
					answered++
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	if limited != 6 || answered < 5 || total > ceiling*105/100 {
		t.Errorf("%d answers, %d ended at the limit, %d tokens", answered, limited, total)
	}
}

// TestRace checks that requests that race for one budget don't pass it, even if the
// provider ignores their bounds.
func TestRace(t *testing.T) {
	const budget = 40_000
	mock := &mockmodel.Model{Steps: []mockmodel.Step{{Text: "Some words that never come to an end. ", Endless: true}}}
	s := newSetup(t, Responses, mock, budget, nil)
	request := streams(8_000)[Responses]
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { send(t, http.MethodPost, s.url+request[0], request[1]) })
	}
	wg.Wait()
	var total int64
	for range 4 {
		total += (<-s.ended).Usage.Tokens()
	}
	if total > budget*105/100 || total < budget*80/100 {
		t.Errorf("used %d of %d", total, budget)
	}
}

// TestWaitEnds checks that a request that waits for another one's reservation ends with
// its agent.
func TestWaitEnds(t *testing.T) {
	arrived, release := make(chan bool), make(chan bool)
	mock := &mockmodel.Model{}
	s := newSetup(t, Chat, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- true
		<-release
		mock.ServeHTTP(w, r)
	}), 10_000, nil)
	var wg sync.WaitGroup
	wg.Go(func() { send(t, http.MethodPost, s.url+"/v1/chat/completions", `{"model":"fast"}`) })
	<-arrived // and holds all of the budget
	impatient := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 100 * time.Millisecond}
	if _, err := impatient.Post(s.url+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"fast"}`)); err == nil {
		t.Error("a second request fit")
	}
	if end := <-s.ended; end.Class != ClassClientGone {
		t.Errorf("%+v", end)
	}
	close(release)
	wg.Wait()
	if end := <-s.ended; end.Stage != Completed {
		t.Errorf("%+v", end)
	}
}
