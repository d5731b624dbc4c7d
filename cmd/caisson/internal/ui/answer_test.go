package ui

import "testing"

// Fenced code is complete at its closing fence, not at an empty line or another fence.
func TestFencedCodeIsCommittedWhole(t *testing.T) {
	for _, fence := range []string{"```", "~~~"} {
		other := map[string]string{"```": "~~~", "~~~": "```"}[fence]
		var a answerText
		text := fence + "go\none\n\n" + other + "\ntwo\n"
		if got := a.addText(text); got != "" {
			t.Errorf("%s: %q is complete before its end", fence, got)
		}
		if got := a.addText(fence + "\n"); got != text+fence+"\n" {
			t.Errorf("%s: %q", fence, got)
		}
	}
}
