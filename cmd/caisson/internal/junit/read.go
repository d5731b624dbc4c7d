package junit

import (
	"bytes"
	"encoding/xml"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Failure is a failed test.
type Failure struct {
	// Class and Name are the test's. File and Line are its place, or "" and 0. All of
	// it is foreign text.
	Class, Name, File string
	Line              int
	Message           string
}

const maxMessage = 4 << 10

// ReadFailures returns at most most failures from concatenated reports. Anything that
// is not XML ends a report.
func ReadFailures(data []byte, most int) []Failure {
	var all []Failure
	declaration := []byte("<?xml")
	for i, part := range bytes.Split(data, declaration) {
		if i > 0 {
			part = append(bytes.Clone(declaration), part...)
		}
		all = append(all, readReport(part, most-len(all))...)
	}
	return all
}

func readReport(data []byte, most int) []Failure {
	d := xml.NewDecoder(bytes.NewReader(data))
	var all []Failure
	var test Failure
	failed, inside := false, false
	for len(all) < most {
		token, err := d.Token()
		if err != nil {
			return all
		}
		switch t := token.(type) {
		case xml.StartElement:
			switch t.Name.Local {
			case "testcase":
				test, failed = newFailure(t.Attr), false
			case "failure", "error":
				failed, inside = true, true
				test.addMessage(findAttribute(t.Attr, "message"))
			}
		case xml.CharData:
			if inside {
				test.addMessage(string(t))
			}
		case xml.EndElement:
			switch t.Name.Local {
			case "failure", "error":
				inside = false
			case "testcase":
				if failed {
					test.findPlace()
					all = append(all, test)
				}
				test, failed = Failure{}, false
			}
		}
	}
	return all
}

func newFailure(attributes []xml.Attr) Failure {
	f := Failure{Class: findAttribute(attributes, "classname"), Name: findAttribute(attributes, "name"), File: findAttribute(attributes, "file")}
	f.Line, _ = strconv.Atoi(findAttribute(attributes, "line"))
	return f
}

func findAttribute(attributes []xml.Attr, name string) string {
	for _, a := range attributes {
		if a.Name.Local == name && a.Name.Space == "" {
			return a.Value
		}
	}
	return ""
}

// addMessage appends a text unless the message has it.
func (f *Failure) addMessage(text string) {
	text = strings.TrimSpace(text)
	if text == "" || strings.Contains(f.Message, text) {
		return
	}
	if f.Message != "" && strings.HasPrefix(text, f.Message) {
		f.Message = ""
	}
	f.Message = strings.TrimSpace(f.Message + "\n" + text)
	if len(f.Message) > maxMessage {
		f.Message = strings.ToValidUTF8(f.Message[:maxMessage], "")
	}
}

// place matches a file and line in the form of most test programs.
var place = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`([\pL\pN_.+@/-]+\.\pL[\pL\pN]*):([1-9][0-9]{0,6})\b`)
})

// findPlace takes the place from the message if the attributes have none.
func (f *Failure) findPlace() {
	if f.File != "" {
		return
	}
	if m := place().FindStringSubmatch(f.Message); m != nil {
		f.File = m[1]
		f.Line, _ = strconv.Atoi(m[2])
	}
}
