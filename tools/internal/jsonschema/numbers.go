package jsonschema

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
)

// WriteIntegers returns v with whole numbers of 64 bits written as integers: JSON
// Schema accepts 60.0 and 6e1 as integers, but most programs don't.
func WriteIntegers(v any) any {
	switch v := v.(type) {
	case json.Number:
		r, _ := new(big.Rat).SetString(string(v)) // strictjson.CheckNumber accepted it
		if r.IsInt() && r.Num().IsInt64() {
			return json.Number(r.Num().String())
		}
	case []any:
		list := make([]any, len(v))
		for i, e := range v {
			list[i] = WriteIntegers(e)
		}
		return list
	case map[string]any:
		object := make(map[string]any, len(v))
		for name, e := range v {
			object[name] = WriteIntegers(e)
		}
		return object
	}
	return v
}

// sizeKeywords are the keywords whose numbers the library converts to an int.
var sizeKeywords = []string{
	"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains",
}

// clampSize returns a number that an int holds instead of a larger one. No value is
// that large.
func clampSize(n json.Number) json.Number {
	r, _ := new(big.Rat).SetString(string(n)) // strictjson.CheckNumber accepted it
	if r.IsInt() && r.Num().Cmp(big.NewInt(math.MaxInt)) > 0 {
		return json.Number(strconv.Itoa(math.MaxInt))
	}
	return n
}

// formatNumber returns a number of JSON in decimal, exactly.
func formatNumber(r *big.Rat) string {
	digits, _ := r.FloatPrec()
	return r.FloatString(digits)
}
