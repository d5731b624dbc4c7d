package strictjson

import (
	"strings"
	"testing"
)

func TestDecode(t *testing.T) {
	long := strings.Repeat("k", 90)
	values := strings.Repeat("1,", MaxValues-2)
	for text, want := range map[string]string{
		`[[1]]`:                               "",
		`[[[]]]`:                              "nested deeper than 2",
		`{"a":{}}`:                            "",
		`{"a":{"b":{}}}`:                      "nested deeper than 2",
		`[` + values + `1]`:                   "",
		`[` + values + `1,1]`:                 "more than 50000 values",
		strings.Repeat(" ", 200_000):          "JSON ends too early",
		strings.Repeat(" ", 200_001):          "200001 bytes, at most 200000 are accepted",
		`[1`:                                  "JSON ends too early",
		`["a`:                                 "JSON ends too early",
		`[1}`:                                 "not JSON: invalid character '}' after array element",
		`{`:                                   "JSON ends too early",
		`{"a"`:                                "JSON ends too early",
		`{"a":1`:                              "JSON ends too early",
		`{"a":1]`:                             "not JSON: invalid character ']' after object key:value pair",
		`{1:2}`:                               "not JSON: invalid character '1'",
		`1 2`:                                 "more data after the JSON value",
		`1 x`:                                 "more data after the JSON value",
		`"` + "\xff" + `"`:                    "not valid UTF-8",
		`[1e500]`:                             "number 1e500 is out of range",
		`{"` + long + `":1,"` + long + `":2}`: `key "` + long[:77] + `…" is given twice`,
	} {
		if _, err := Decode([]byte(text), 200_000, 2); want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

func TestCheckNumber(t *testing.T) {
	nines := strings.Repeat("9", 101)
	for n, want := range map[string]string{
		"1e400": "", "1E-400": "", "1e401": "number 1e401 is out of range", "1E-401": "number 1E-401 is out of range",
		"1e" + nines: "number 1e" + nines[:35] + "… is out of range",
		"e401":       "number e401 is out of range",
		nines[:100]:  "", nines: "number " + nines[:37] + "… has more than 100 digits",
	} {
		if err := CheckNumber(n); want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%.40s: %v, want %q", n, err, want)
		}
	}
}

func TestCanonical(t *testing.T) {
	if got, err := Canonical(map[string]any{"b": "<&>", "a": []any{}}); string(got) != `{"a":[],"b":"<&>"}` || err != nil {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := Canonical(make(chan int)); err == nil {
		t.Error("a channel is encoded")
	}
}
