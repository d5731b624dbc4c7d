package openai_test

import (
	"net/http"
	"regexp"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/aimocktest"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
	"github.com/caisson-run/caisson/loop/openai"
)

// TestModelServer tests the adapter, under the real loop, against a third-party mock:
// aimock, from npm.
func TestModelServer(t *testing.T) {
	base := aimocktest.Start(t)
	newModel := func(api openai.API, stream bool) loop.Model {
		m, err := openai.New(openai.Options{ModelOptions: loop.ModelOptions{Model: "mock", BaseURL: base + "/v1", APIKey: "test", Headers: map[string]string{"X-Test-Id": string(api)}}, API: api, Stream: stream})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	for _, api := range []openai.API{openai.Chat, openai.Responses} {
		t.Run(string(api), func(t *testing.T) {
			for mode, stream := range map[string]bool{"whole": false, "stream": true} {
				t.Run(mode, func(t *testing.T) {
					m := newModel(api, stream)
					t.Run("two calls in one round", func(t *testing.T) { aimocktest.TestTwoCalls(t, base, m, stream) })
					t.Run("malformed arguments", func(t *testing.T) { testMalformed(t, m) })
				})
			}
			aimocktest.TestFailures(t, newModel(api, true))
		})
	}
}

// TestReasoningIsSentBack checks that the server gets encrypted reasoning back, with
// its ID and before the call that followed it.
func TestReasoningIsSentBack(t *testing.T) {
	base := aimocktest.Start(t)
	sent := &wiretest.RecordingTransport{}
	for mode, stream := range map[string]bool{"whole": false, "stream": true} {
		m, err := openai.New(openai.Options{ModelOptions: loop.ModelOptions{Model: "gpt-5", BaseURL: base + "/v1", APIKey: "test", HTTPClient: &http.Client{Transport: sent}}, API: openai.Responses, Stream: stream})
		if err != nil {
			t.Fatal(err)
		}
		d := &wiretest.Dispatcher{}
		out, _ := aimocktest.RunTurn(t, m, "think first", d, new(0))
		if out.Reason != loop.StopAnswered || out.Answer != "It is there." || len(d.Ran) != 1 {
			t.Errorf("%s: reason %s, answer %q, %v; ran %v", mode, out.Reason, out.Answer, out.Err, d.Ran)
		}
		if !regexp.MustCompile(`"id":"rs[-_][^"]+","summary":\[\{"text":"I should look at it\."[^]]*\],"encrypted_content":"[^"]{9,}","type":"reasoning"\},\{"arguments":`).MatchString(sent.Last) {
			t.Errorf("%s: the second request is %s", mode, sent.Last)
		}
	}
}

func testMalformed(t *testing.T, m loop.Model) {
	d := &wiretest.Dispatcher{}
	out, _ := aimocktest.RunTurn(t, m, "malformed", d, nil)
	if out.Reason != loop.StopAnswered || len(d.Ran) != 0 || len(d.Refused) != 1 {
		t.Errorf("reason %s, %v; ran %v, refused %v", out.Reason, out.Err, d.Ran, d.Refused)
	}
}
