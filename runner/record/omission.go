package record

import (
	"bytes"
	"encoding/json"
)

// Omission stands, in an audit.jsonl, for records that retention has removed.
// It carries the chain across them: Prev is the hash of the line before the
// first, SHA256 that of the last.
//
//	{"omitted":{"first":3,"last":41,"prev":"…","sha256":"…"}}
type Omission struct {
	First  int64  `json:"first"` // seq, as in the records
	Last   int64  `json:"last"`
	Prev   string `json:"prev"`
	SHA256 string `json:"sha256"`
}

type omissionLine struct {
	Omitted Omission `json:"omitted"`
}

// EncodeOmission returns the line that stands for records that were left out.
func EncodeOmission(o Omission) ([]byte, error) { return json.Marshal(omissionLine{o}) }

// decodeOmission tells an omission from a record by how the line begins.
func decodeOmission(text []byte) (Omission, bool) {
	if !bytes.HasPrefix(text, []byte(`{"omitted":`)) {
		return Omission{}, false
	}
	var l omissionLine
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	err := dec.Decode(&l)
	return l.Omitted, err == nil
}
