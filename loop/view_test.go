package loop

import (
	"context"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// long is a tool with results of 40,000 bytes, about 10,000 tokens.
func long() *fakeTools {
	return &fakeTools{names: []tools.Name{"read_file"}, run: func(context.Context, tools.Call) (string, error) {
		return "BEGIN" + strings.Repeat("ä", 20_000) + "END", nil
	}}
}

// counted answers with the tokens that a provider would count.
func counted(answer func(n int) Response) *scriptModel {
	return &scriptModel{answer: func(n int, req Request, _ func(Delta)) (Response, error) {
		r := answer(n)
		r.Usage.InputTokens = tokensOf(req)
		return r, nil
	}}
}

func tokensOf(req Request) int64 {
	var n int64
	for _, m := range req.Messages {
		n += int64(len(m.text())) / tokenBytes
		for _, b := range m.Blocks {
			if b.ToolResult != nil {
				n += weight(b.ToolResult.Content) / tokenBytes
			}
		}
	}
	return n
}

// TestNearTheWindow: old results are shortened in what is sent, and only there.
func TestNearTheWindow(t *testing.T) {
	model := counted(func(n int) Response {
		if n == 12 {
			return says("Done.")
		}
		return calls(`read_file {"path":"` + strings.Repeat("x", n) + `"}`)
	})
	o := options(model, long())
	o.ContextWindow = 50_000
	out, events := run(t, t.Context(), o)
	if out.Reason != StopAnswered {
		t.Fatalf("outcome: %s, %v", out.Reason, out.Err)
	}
	for i, req := range model.asked {
		if got := tokensOf(req); got > o.ContextWindow {
			t.Errorf("call %d has %d tokens of %d", i+1, got, o.ContextWindow)
		}
	}
	var shortenedResults int
	var warned []BudgetWarning
	for _, e := range events {
		switch e := e.(type) {
		case ContextShortened:
			shortenedResults += e.Results
		case BudgetWarning:
			warned = append(warned, e)
		}
	}
	if shortenedResults < 3 || len(warned) != 1 || warned[0].Kind != limits.KindContext {
		t.Errorf("%d results shortened, warnings %v", shortenedResults, warned)
	}
	last := model.asked[len(model.asked)-1].Messages
	first := joinText(last[3].Blocks[0].ToolResult.Content)
	if !strings.Contains(first, "BEGIN") || !strings.Contains(first, "END") || !strings.Contains(first, "bytes of this old result") ||
		!utf8.ValidString(first) || seen(first) != 2 {
		t.Errorf("the first result is sent as %q", first)
	}
	if newest := joinText(last[len(last)-1].Blocks[0].ToolResult.Content); len(newest) < 40_000 {
		t.Error("the newest result was shortened")
	}
	for _, m := range out.History {
		if m.Role == RoleTool && len(joinText(m.Blocks[0].ToolResult.Content)) < 40_000 {
			t.Error("the history was shortened")
		}
	}
}

// TestOverflow: a provider that refuses for length is asked again, shorter,
// until nothing is left to shorten.
func TestOverflow(t *testing.T) {
	refused := &ModelError{Class: ModelContextOverflow, Status: 400, Err: errors.New("too long")}
	for name, tt := range map[string]struct {
		fits  int64
		want  StopReason
		asked int
	}{
		"fits when shortened":           {fits: 15_000, want: StopAnswered, asked: 4},
		"fits with the newest short":    {fits: 5_000, want: StopAnswered, asked: 5},
		"never fits":                    {fits: 1, want: StopLimit, asked: 1},
		"fits until there are results ": {fits: 100, want: StopLimit, asked: 3},
	} {
		t.Run(name, func(t *testing.T) {
			rounds := 0
			model := &scriptModel{answer: func(_ int, req Request, _ func(Delta)) (Response, error) {
				if tokensOf(req) > tt.fits {
					return Response{}, refused
				}
				if rounds++; rounds < 3 {
					return calls("read_file " + strings.Repeat(" ", rounds)), nil
				}
				return says("Done."), nil
			}}
			out, _ := run(t, t.Context(), options(model, long()))
			if out.Reason != tt.want || len(model.asked) != tt.asked {
				t.Errorf("reason %s, asked %d, want %s, %d", out.Reason, len(model.asked), tt.want, tt.asked)
			}
			if tt.want == StopLimit && out.Limit.Kind != limits.KindContext {
				t.Errorf("limit = %v", out.Limit)
			}
		})
	}
}

func TestShortened(t *testing.T) {
	image := tools.Block{Image: []byte("png"), MediaType: "image/png"}
	for name, tt := range map[string]struct {
		content []tools.Block
		want    string
	}{
		"short": {content: []tools.Block{{Text: "a"}, {Text: "b"}}, want: "a\nb"},
		"image": {content: []tools.Block{{Text: "a"}, image}, want: "a\n[1 images of this old result were left out]"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, shortened(tt.content)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
