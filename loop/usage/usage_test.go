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

// TestAnthropic decodes counts of writes to the cache and of compactions.
func TestAnthropic(t *testing.T) {
	for text, want := range map[string]limits.Usage{
		`{"input_tokens":2,"cache_creation_input_tokens":10,"cache_read_input_tokens":5,"output_tokens":1,"cache_creation":{"ephemeral_5m_input_tokens":3,"ephemeral_1h_input_tokens":7}}`: {
			InputTokens: 2, CachedInputTokens: 5, CacheWriteTokens: 10, CacheWriteHourTokens: 7, OutputTokens: 1,
		},
		`{"input_tokens":2,"cache_creation_input_tokens":4,"cache_creation":{"ephemeral_1h_input_tokens":7}}`: {InputTokens: 2, CacheWriteTokens: 4, CacheWriteHourTokens: 4},
		`{"input_tokens":23000,"output_tokens":1000,"iterations":[{"type":"compaction","input_tokens":180000,"output_tokens":3500},{"type":"message","input_tokens":23000,"output_tokens":1000}]}`: {
			InputTokens: 203_000, OutputTokens: 4500,
		},
		`{"input_tokens":0,"output_tokens":0,"iterations":[{"type":"compaction","input_tokens":144,"output_tokens":276}]}`: {InputTokens: 144, OutputTokens: 276},
		`{"input_tokens":9,"output_tokens":8,"iterations":[{"type":"message","input_tokens":4,"output_tokens":8}]}`:        {InputTokens: 9, OutputTokens: 8},
		`{"input_tokens":9,"output_tokens":8,"iterations":[7,{"output_tokens":"x"}],"cache_creation":null}`:                {InputTokens: 9, OutputTokens: 8},
	} {
		var u usage.Anthropic
		if err := json.Unmarshal([]byte(text), &u); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, u.Limits()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}
