package openai_test

import (
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/aimocktest"
	"github.com/caisson-run/caisson/loop/openai"
)

// TestModelServer tests the adapter, under the real loop, against a server of
// others: aimock, from npm.
func TestModelServer(t *testing.T) {
	base := aimocktest.Start(t)
	newModel := func(stream bool) loop.Model {
		m, err := openai.New(openai.Options{Model: "mock", BaseURL: base + "/v1", APIKey: "test", Stream: stream})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	for mode, stream := range map[string]bool{"whole": false, "stream": true} {
		t.Run(mode, func(t *testing.T) {
			m := newModel(stream)
			t.Run("two calls in one round", func(t *testing.T) { aimocktest.TestTwoCalls(t, base, m, stream) })
			t.Run("malformed arguments", func(t *testing.T) { testMalformed(t, m) })
		})
	}
	aimocktest.TestFailures(t, newModel(true))
}

func testMalformed(t *testing.T, m loop.Model) {
	d := &aimocktest.Dispatcher{}
	out, _ := aimocktest.RunTurn(t, m, "malformed", d, nil)
	if out.Reason != loop.StopAnswered || len(d.Ran) != 0 || len(d.Refused) != 1 {
		t.Errorf("reason %s, %v; ran %v, refused %v", out.Reason, out.Err, d.Ran, d.Refused)
	}
}
