package bridge

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/bridge/mockmodel"
)

// TestOversizedRequests has requests that are larger than any model takes: they are
// refused, or lowered, and no limit counts as exhausted. The control uses up the budget.
func TestOversizedRequests(t *testing.T) {
	mock := &mockmodel.Model{Steps: []mockmodel.Step{{Text: "short"}}}
	s := newSetup(t, Anthropic, mock, 300_000, nil)
	for name, tt := range map[string]struct {
		body  string
		class Class
		limit bool
	}{
		"thinking": {`{"model":"fast","messages":[],"max_tokens":1000000000000,"thinking":{"type":"enabled","budget_tokens":999999999998}}`, ClassRefused, false},
		"output":   {`{"model":"fast","messages":[],"max_tokens":1000000000000}`, "", false},
		"input":    {`{"model":"fast","max_tokens":5,"messages":"` + strings.Repeat("x", 4<<20) + `"}`, ClassBudget, true},
	} {
		got := send(t, http.MethodPost, s.url+"/v1/messages", tt.body)
		end := <-s.ended
		if end.Class != tt.class || (end.Limit != nil) != tt.limit || end.Exhausted {
			t.Errorf("%s: status %d, %q, limit %v, exhausted %t: %s", name, got.status, end.Class, end.Limit, end.Exhausted, end.Message)
		}
	}
	for _, r := range mock.Requests() {
		if strings.Contains(string(r.Body), "000000000000") {
			t.Errorf("the provider got %s", r.Body)
		}
	}
	spent := newSetup(t, Anthropic, mock, 500, nil)
	send(t, http.MethodPost, spent.url+"/v1/messages", `{"model":"fast","messages":[],"max_tokens":5000}`)
	if end := <-spent.ended; end.Limit == nil || !end.Exhausted {
		t.Errorf("control: %+v", end)
	}
}

// TestAbortedStream checks that an agent that leaves before the end of an answer pays for
// what the provider counts, or for the reserved output if the end doesn't come.
func TestAbortedStream(t *testing.T) {
	for name, tt := range map[string]struct {
		step  mockmodel.Step
		class Class
		least int64
	}{
		"the end comes": {mockmodel.Step{Text: strings.Repeat("word ", 100), Pause: 20 * time.Millisecond}, "", 100},
		"it doesn't":    {mockmodel.Step{Text: "words without end, ", Endless: true, Pause: 20 * time.Millisecond}, ClassClientGone, 9_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t, Anthropic, &mockmodel.Model{Steps: []mockmodel.Step{tt.step}}, 1_000_000, nil)
			ctx, leave := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/messages", strings.NewReader(`{"model":"fast","stream":true,"max_tokens":9000,"messages":[]}`))
			if err != nil {
				t.Fatal(err)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil {
				t.Fatal(line, err)
			}
			leave()
			_ = res.Body.Close()
			select {
			case end := <-s.ended:
				if end.Class != tt.class || end.Usage.OutputTokens < tt.least {
					t.Errorf("%q, %+v", end.Class, end.Usage)
				}
			case <-time.After(4 * lingerTime):
				t.Error("the request doesn't end")
			}
		})
	}
}

// TestCostlyBodies has bodies whose reading would take much memory or time. The bounds of
// values and tools refuse them; the control is just below.
func TestCostlyBodies(t *testing.T) {
	list := func(n int, one string) string { return "[" + strings.Repeat(one+",", n-1) + one + "]" }
	var tools []string
	for i := range maxTools + 1 {
		tools = append(tools, fmt.Sprintf(`{"type":"kind_%d"}`, i))
	}
	var members []string
	for i := range maxMembers {
		members = append(members, fmt.Sprintf(`"m%d":0`, i))
	}
	for name, tt := range map[string]struct{ body, want string }{
		"values":  {`{"model":"m","messages":` + list(maxValues+1, "0") + `}`, "values"},
		"members": {`{"model":"m",` + strings.Join(members, ",") + `}`, "members"},
		"tools":   {`{"model":"m","tools":[` + strings.Join(tools, ",") + `]}`, "tools"},
		"control": {`{"model":"m","messages":` + list(maxValues-9, "0") + `,"tools":[` + strings.Join(tools[1:5], ",") + `]}`, ""},
	} {
		q := newRequest(Anthropic, false)
		began := time.Now()
		err := q.rewrite([]byte(tt.body))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
		t.Logf("%s: %s", name, time.Since(began))
	}
	q := newRequest(Anthropic, false)
	if err := q.rewrite([]byte(`{"model":"m","tools":[{"type":"` + strings.Repeat("x", 1<<20) + `"}]}`)); err != nil || len(q.withheld) != 1 || len(q.withheld[0]) > maxWithheldBytes {
		t.Errorf("%d withheld, %v", len(q.withheld), err)
	}
}
