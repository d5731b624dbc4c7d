package doctor

import "testing"

func TestNearestWord(t *testing.T) {
	for misspelt, want := range map[string]string{"modle": "model", "mod": "mode", "nodel": "model", "x": "", "workspace": ""} {
		if got := NearestWord(misspelt, []string{"mode", "model", "models"}); got != want {
			t.Errorf("%s: %q, want %q", misspelt, got, want)
		}
	}
}
