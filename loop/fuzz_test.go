package loop

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// byteSource turns bytes into choices. After the last byte every choice is 0, an
// answer.
type byteSource struct{ data []byte }

func (c *byteSource) next(n int) int {
	if len(c.data) == 0 {
		return 0
	}
	b := int(c.data[0])
	c.data = c.data[1:]
	return b % n
}

func newRandomModel(c *byteSource) *scriptModel {
	return &scriptModel{respond: func(_ int, req Request, onDelta func(Delta)) (Response, error) {
		r := Response{}
		switch c.next(8) {
		case 0:
			r = textResponse("An answer.")
			onDelta(Delta{Text: "An answer."})
		case 1:
			return Response{}, &ModelError{
				Class: []ErrorClass{ModelAuth, ModelServer, ModelContextOverflow, ModelCancelled}[c.next(4)], Err: errors.New("no"),
			}
		case 2: // nothing
		default:
			for range c.next(6) + 1 {
				r.Message.Blocks = append(r.Message.Blocks, Block{ToolUse: &ToolUse{
					ProviderID: []string{"", "a", "b", "\x00"}[c.next(4)],
					Name:       tools.Name([]string{"shell", "nope", "", "a__b"}[c.next(4)]),
					Raw:        []string{"{}", "", "{", `{"a":1}`, "[]"}[c.next(5)],
				}})
			}
		}
		r.Truncated = c.next(5) == 1
		r.Usage.InputTokens = int64(c.next(50) * 10)
		r.Usage.OutputTokens = int64(c.next(50)) - 10
		r.Finish = []string{"stop", "tool_calls", "", "length"}[c.next(4)]
		return r, nil
	}}
}

// FuzzTurn checks turns with random models, tools, limits and failures to record. Each
// turn ends, each call has one result and runs at most once, no malformed or truncated
// call runs, and limits hold.
func FuzzTurn(f *testing.F) {
	seeds := [][]byte{
		{},
		{0},
		{2, 2},
		{1, 2},
		{3, 1, 0, 0},
		{5, 5, 1, 0, 0, 1, 0, 0, 1, 1, 2},
		{4, 3, 0, 0, 3, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9},
		{7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7},
	}
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	for _, s := range seeds {
		f.Add(s, uint16(0))
		f.Add(s, uint16(0xffff))
		f.Add(s, uint16(0x1234))
	}
	f.Fuzz(func(t *testing.T, data []byte, settings uint16) {
		c := &byteSource{data: data}
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		ran := map[string]bool{}
		d := &fakeDispatcher{names: []tools.Name{"shell", "a/b"}}
		if settings&1 != 0 {
			d.names = nil
		}
		d.run = func(_ context.Context, call tools.Call) (string, error) {
			if ran[call.ID] {
				t.Errorf("call %s ran twice", call.ID)
			}
			ran[call.ID] = true
			switch c.next(12) {
			case 1:
				d.err = fmt.Errorf("gone: %w", tools.ErrSandboxLost)
			case 2:
				cancel(errors.New("interrupted"))
			case 3:
				return "", errors.New("bad")
			}
			return fmt.Sprint("result ", c.next(3)), nil
		}
		o := newTestOptions(newRandomModel(c), d)
		o.Budget = limits.Budget{Rounds: new(int64(settings>>1&15) + 1)}
		if settings&0x20 != 0 {
			o.Budget.ToolCalls = new(int64(settings>>6&7) + 1)
		}
		if settings&0x200 != 0 {
			o.Budget.Tokens = new(int64(settings>>10&7)*200 + 1)
		}
		if settings&0x2000 != 0 {
			o.Profiles[0].ContextWindow = 1000
		}
		if failAt := int(settings >> 14); failAt > 0 {
			n := 0
			o.Emit = func(Event) error {
				n++
				if n > failAt*7 {
					return errors.New("disk full")
				}
				return nil
			}
		}
		out, _ := runTurn(t, ctx, o)

		if out.Reason == "" || (out.Reason == StopLimit) != (out.Limit != nil) {
			t.Errorf("reason %q, limit %v", out.Reason, out.Limit)
		}
		if out.Usage.Rounds > *o.Budget.Rounds {
			t.Errorf("%d rounds of %d", out.Usage.Rounds, *o.Budget.Rounds)
		}
		if b := o.Budget.ToolCalls; b != nil && int64(len(ran)) > *b {
			t.Errorf("%d calls ran of %d", len(ran), *b)
		}
		for _, m := range out.History {
			for _, u := range m.toolUses() {
				if u.InputError != "" && ran[u.ID] {
					t.Errorf("a malformed or truncated call ran: %+v", u)
				}
			}
		}
	})
}
