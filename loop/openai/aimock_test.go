package openai_test

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/aimocktest"
	"github.com/caisson-run/caisson/loop/openai"
)

// TestModelServer tests the adapter, under the real loop, against a server of
// others: aimock, from npm.
func TestModelServer(t *testing.T) {
	base := aimocktest.Start(t)
	newModel := func(api openai.API, stream bool) loop.Model {
		m, err := openai.New(openai.Options{
			Model: "mock", API: api, BaseURL: base + "/v1", APIKey: "test", Stream: stream,
			Headers: map[string]string{"X-Test-Id": string(api)}, // requests are counted apart
		})
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

// TestReasoningIsSentBack tests that the server gets encrypted reasoning back, with its
// ID and before the call that followed it.
func TestReasoningIsSentBack(t *testing.T) {
	base := aimocktest.Start(t)
	sent := &recordingTransport{}
	for mode, stream := range map[string]bool{"whole": false, "stream": true} {
		m, err := openai.New(openai.Options{
			Model: "gpt-5", API: openai.Responses, BaseURL: base + "/v1", APIKey: "test", Stream: stream, HTTPClient: &http.Client{Transport: sent},
		})
		if err != nil {
			t.Fatal(err)
		}
		d := &aimocktest.Dispatcher{}
		out, _ := aimocktest.RunTurn(t, m, "think first", d, new(0))
		if out.Reason != loop.StopAnswered || out.Answer != "It is there." || len(d.Ran) != 1 {
			t.Errorf("%s: reason %s, answer %q, %v; ran %v", mode, out.Reason, out.Answer, out.Err, d.Ran)
		}
		if !regexp.MustCompile(`"id":"rs[-_][^"]+","summary":\[\{"text":"I should look at it\."[^]]*\],"encrypted_content":"[^"]{9,}","type":"reasoning"\},\{"arguments":`).MatchString(sent.last) {
			t.Errorf("%s: the second request is %s", mode, sent.last)
		}
	}
}

// recordingTransport keeps the body of the last request.
type recordingTransport struct{ last string }

func (r *recordingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	r.last = string(body)
	req = req.Clone(req.Context())
	req.Body = io.NopCloser(bytes.NewReader(body))
	req.Close = true
	return http.DefaultTransport.RoundTrip(req)
}

func testMalformed(t *testing.T, m loop.Model) {
	d := &aimocktest.Dispatcher{}
	out, _ := aimocktest.RunTurn(t, m, "malformed", d, nil)
	if out.Reason != loop.StopAnswered || len(d.Ran) != 0 || len(d.Refused) != 1 {
		t.Errorf("reason %s, %v; ran %v, refused %v", out.Reason, out.Err, d.Ran, d.Refused)
	}
}
