package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/loop/boundary/boundarytest"
	"github.com/caisson-run/caisson/tools"
)

// newLongDispatcher returns a dispatcher whose results have 40,000 bytes, about
// 10,000 tokens.
func newLongDispatcher() *fakeDispatcher {
	return &fakeDispatcher{names: []tools.Name{"read_file"}, run: func(context.Context, tools.Call) (string, error) {
		return "BEGIN" + strings.Repeat("ä", 20_000) + "END", nil
	}}
}

func newCountingModel(answer func(n int) Response) *scriptModel {
	return &scriptModel{respond: func(n int, req Request, _ func(Delta)) (Response, error) {
		r := answer(n)
		r.Usage.InputTokens = countTokens(req)
		return r, nil
	}}
}

func countTokens(req Request) int64 {
	var n int64
	for _, m := range req.Messages {
		n += int64(len(m.joinedText())) / tokenBytes
		for _, b := range m.Blocks {
			if b.ToolResult != nil {
				n += contentBytes(b.ToolResult.Content) / tokenBytes
			}
		}
	}
	return n
}

// TestShortensNearTheWindow checks that old results are shortened in requests, but
// complete in events, from which records are made.
func TestShortensNearTheWindow(t *testing.T) {
	model := newCountingModel(func(n int) Response {
		if n == 12 {
			return textResponse("Done.")
		}
		return callsResponse(`read_file {"path":"` + strings.Repeat("x", n) + `"}`)
	})
	o := newTestOptions(model, newLongDispatcher())
	o.Profiles[0].ContextWindow = 50_000
	out, events := runTurn(t, t.Context(), o)
	if out.Reason != StopAnswered {
		t.Fatalf("outcome %s, %v", out.Reason, out.Err)
	}
	for i, req := range model.requests {
		if got := countTokens(req); got > o.Profiles[0].ContextWindow {
			t.Errorf("call %d has %d tokens of %d", i+1, got, o.Profiles[0].ContextWindow)
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
	if shortenedResults < 3 || len(warned) != 1 || warned[0].What != limits.KindContext {
		t.Errorf("%d results shortened, warnings %v", shortenedResults, warned)
	}
	last := model.requests[len(model.requests)-1].Messages
	first := boundary.JoinText(last[3].Blocks[0].ToolResult.Content)
	if !strings.Contains(first, "BEGIN") || !strings.Contains(first, "END") || !strings.Contains(first, "bytes of this old result") ||
		!utf8.ValidString(first) || boundarytest.CountTags(first) != 2 {
		t.Errorf("the first result is sent as %q", first)
	}
	if newest := boundary.JoinText(last[len(last)-1].Blocks[0].ToolResult.Content); len(newest) < 40_000 {
		t.Error("the newest result was shortened")
	}
	for _, m := range addedMessages(events) {
		if m.Role == RoleTool && len(boundary.JoinText(m.Blocks[0].ToolResult.Content)) < 40_000 {
			t.Error("an event has a shortened result")
		}
	}
}

// TestContextOverflow checks that a request refused as too long is shortened and
// repeated, until nothing is left to shorten.
func TestContextOverflow(t *testing.T) {
	refused := &ModelError{Class: ModelContextOverflow, Status: 400, Err: errors.New("too long")}
	for name, tt := range map[string]struct {
		fits     int64
		want     StopReason
		requests int
	}{
		"fits when shortened":           {fits: 15_000, want: StopAnswered, requests: 4},
		"fits with the newest short":    {fits: 5_000, want: StopAnswered, requests: 5},
		"never fits":                    {fits: 1, want: StopLimit, requests: 1},
		"fits until there are results ": {fits: 100, want: StopLimit, requests: 3},
	} {
		t.Run(name, func(t *testing.T) {
			rounds := 0
			model := &scriptModel{respond: func(_ int, req Request, _ func(Delta)) (Response, error) {
				if countTokens(req) > tt.fits {
					return Response{}, refused
				}
				rounds++
				if rounds < 3 {
					return callsResponse("read_file " + strings.Repeat(" ", rounds)), nil
				}
				return textResponse("Done."), nil
			}}
			out, _ := runTurn(t, t.Context(), newTestOptions(model, newLongDispatcher()))
			if out.Reason != tt.want || len(model.requests) != tt.requests {
				t.Errorf("reason %s, requests %d, want %s, %d", out.Reason, len(model.requests), tt.want, tt.requests)
			}
			if tt.want == StopLimit && out.Limit.Kind != limits.KindContext {
				t.Errorf("limit = %v", out.Limit)
			}
		})
	}
}

func newRoundWithResults(id string, sizes ...int) []Message {
	out := []Message{{Role: RoleAssistant}}
	for i, n := range sizes {
		out = append(out, Message{Role: RoleTool, Blocks: []Block{{ToolResult: &ToolResult{
			ToolUseID: id + strconv.Itoa(i), Content: []tools.Block{{Text: strings.Repeat("x", n)}},
		}}}})
	}
	return out
}

func TestShortenOldest(t *testing.T) {
	old, newest := newRoundWithResults("a", minShortenBytes, minShortenBytes-1, 1300+900, 1900), newRoundWithResults("b", 10_000)
	both := slices.Concat(old, newest)
	picture := []Message{{Role: RoleTool, Blocks: []Block{{ToolResult: &ToolResult{ToolUseID: "p", Content: []tools.Block{{Image: []byte("png")}}}}}}, {Role: RoleAssistant}}
	for name, tt := range map[string]struct {
		history []Message
		tokens  int64
		results int
		saved   int64
	}{
		"nothing":            {history: both},
		"the least":          {history: both, tokens: 1, results: 1, saved: 900},
		"exactly one":        {history: both, tokens: 900 / tokenBytes, results: 1, saved: 900},
		"more than one":      {history: both, tokens: 900/tokenBytes + 1, results: 2, saved: 900 + 1300},
		"all that is old":    {history: both, tokens: 1_000_000, results: 3, saved: 900 + 1300 + 1000},
		"everything":         {history: both, tokens: shortenAll, results: 3, saved: 900 + 1300 + 1000},
		"none is old":        {history: newest, tokens: 1_000_000},
		"none is old, all":   {history: newest, tokens: shortenAll, results: 1, saved: 9100},
		"no answer":          {history: newest[1:], tokens: 1_000_000},
		"an image is weight": {history: picture, tokens: 1, results: 1, saved: imageBytes - 900},
	} {
		v, history := NewView(nil), slices.Clone(tt.history)
		if n, saved := v.shortenOldest(history, tt.tokens); n != tt.results || saved != tt.saved {
			t.Errorf("%s: %d results and %d bytes, want %d and %d", name, n, saved, tt.results, tt.saved)
		}
		if again, _ := v.shortenOldest(history, tt.tokens); tt.tokens >= 1_000_000 && tt.results > 0 && again > 1 {
			t.Errorf("%s: %d results were shortened again", name, again)
		}
	}
}

// TestShortenToThreeFifths checks that results are shortened until three fifths of the
// window are used.
func TestShortenToThreeFifths(t *testing.T) {
	for name, tt := range map[string]struct {
		window, tokens int64
		sizes          []int
		want           int
	}{
		"far from it":       {window: 50_000, tokens: 39_999, sizes: slices.Repeat([]int{4000}, 30)},
		"four fifths":       {window: 50_000, tokens: 40_000, sizes: slices.Repeat([]int{4000}, 30), want: 13},
		"over":              {window: 50_000, tokens: 41_000, sizes: slices.Repeat([]int{4000}, 30), want: 15},
		"one result":        {window: 50_000, tokens: 41_000, sizes: []int{4000}, want: 1},
		"no window":         {tokens: 41_000, sizes: []int{4000}},
		"the least window":  {window: 1, tokens: 1, sizes: []int{4000}, want: 1},
		"nothing to shrink": {window: 50_000, tokens: 41_000, sizes: []int{10}},
	} {
		var got []ContextShortened
		o := newTestOptions(playResponses(), nil)
		o.Profiles[0].ContextWindow, o.History = tt.window, newRoundWithResults("a", tt.sizes...)
		o.Emit = func(e Event) error {
			if s, ok := e.(ContextShortened); ok {
				got = append(got, s)
			}
			return nil
		}
		answer := textResponse("Hm.")
		answer.Usage.InputTokens = tt.tokens
		newTurn(o).acceptResponse(answer, nil)
		var want []ContextShortened
		if tt.want > 0 {
			want = []ContextShortened{{Results: tt.want, Bytes: int64(tt.want) * 3100}}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: shortened (-want +got):\n%s", name, diff)
		}
	}
}

func omittedNote(n int) string {
	return fmt.Sprintf("\n[%d bytes of this old result were left out to make room; call the tool again if you need them]\n", n)
}

func TestShortenContent(t *testing.T) {
	image := tools.Block{Image: []byte("png"), MediaType: "image/png"}
	for name, tt := range map[string]struct {
		content []tools.Block
		want    string
	}{
		"short":                   {content: []tools.Block{{Text: "a"}, {Text: "b"}}, want: "a\nb"},
		"image":                   {content: []tools.Block{{Text: "a"}, image}, want: "a\n[1 images of this old result were left out]"},
		"as long as what is kept": {content: []tools.Block{{Text: strings.Repeat("x", 900)}}, want: strings.Repeat("x", 900)},
		"long": {
			content: []tools.Block{{Text: strings.Repeat("a", 600) + "b" + strings.Repeat("c", 300)}},
			want:    strings.Repeat("a", 600) + omittedNote(1) + strings.Repeat("c", 300),
		},
		"wide runes": {
			content: []tools.Block{{Text: "a" + strings.Repeat("ä", 599) + "b"}},
			want:    "a" + strings.Repeat("ä", 299) + omittedNote(302) + strings.Repeat("ä", 149) + "b",
		},
		"no text": {content: []tools.Block{{Text: strings.Repeat("\x80", 1000)}}, want: omittedNote(1000)},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, shortenContent(tt.content)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
