package usage_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop/usage"
)

func TestGemini(t *testing.T) {
	for text, want := range map[string]limits.Usage{
		`{"promptTokenCount":100,"cachedContentTokenCount":30,"candidatesTokenCount":"5","thoughtsTokenCount":7,"toolUsePromptTokenCount":2,"totalTokenCount":1}`: {InputTokens: 72, CachedInputTokens: 30, OutputTokens: 12},
		`{"promptTokenCount":1,"cachedContentTokenCount":30}`: {CachedInputTokens: 1},
		`{"promptTokenCount":-5,"candidatesTokenCount":{}}`:   {},
		`{"promptTokenCount":[],"candidatesTokenCount":3}`:    {OutputTokens: 3},
		`"none"`: {},
		`{"promptTokenCount":1e300,"candidatesTokenCount":"NaN"}`:   {},
		`{"promptTokenCount":4.0,"candidatesTokenCount":2,"x":"y"}`: {InputTokens: 4, OutputTokens: 2},
	} {
		var u usage.Gemini
		if err := json.Unmarshal([]byte(text), &u); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, u.Limits()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}
