package wordcount

import (
	"maps"
	"testing"
)

func TestCount(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want map[string]int
	}{
		"empty":       {"", map[string]int{}},
		"one":         {"word", map[string]int{"word": 1}},
		"case":        {"The the THE", map[string]int{"the": 3}},
		"punctuation": {"\"Stop!\" she said. Stop?", map[string]int{"stop": 2, "she": 1, "said": 1}},
		"white space": {"a  b\n\tb", map[string]int{"a": 1, "b": 2}},
		"a dash":      {"one - two", map[string]int{"one": 1, "two": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Count(test.text); !maps.Equal(got, test.want) {
				t.Errorf("Count(%q) = %v, want %v", test.text, got, test.want)
			}
		})
	}
}
