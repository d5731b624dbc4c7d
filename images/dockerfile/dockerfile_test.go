package dockerfile

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

const platform = "linux/amd64"

// No spelling of an ADD of a URL may pass, as an instruction or as a base
// image's trigger. Plain ones must.
func TestURLs(t *testing.T) {
	for _, text := range []string{
		"ADD http://h/f /f", "add HTTPS://h/f /f", "\t ADD\thttp://h/f /f", "ADD --chown=1:1 local http://h/f /", `ADD ["http://h/f", "/f"]`,
		`ADD ["\u0068ttp://h/f", "/f"]`, `ADD "http://h/f" /f`, `ADD h"tt"p://h/f /f`, `ADD h\ttp://h/f /f`, "ADD \\\nhttp://h/f /f", "A\\\nDD http://h/f /f",
		"ADD ht\\\n# comment\n\ntp://h/f /f", "ADD $URL /f", "ADD ht${X}tp://h /f", "ADD https:$X /f", "ONBUILD ADD http://h/f /f", "onbuild\tADD http://h/f /f",
		"RUN true \\\\\nADD http://h/f /f", "RUN <<E\nADD http://h/f /f\nE", "ADD http://h/f /f\r", "\u00a0ADD http://h/f /f", "COPY a b\nADD a\\\n http://h/f b",
		`ADD --chown=0:0 ["\u0068ttp://h/f","/f"]`, `ADD ["\u0068ttp://h/f", "/f"] # x`, `ADD ["a", "/b"]`, `ADD --chown="0:0" a /b`, "ADD --chown=$U a /b", "ADD a $D",
		"ADD v$VERSION.tar /", "ADD git@h:a/b.git /", "ADD github.com/a/b /", "ADD --checksum=sha256:0 http://h/f /f", "ADD <<E /f\nE", "ADD a\u2028http://h/f /f", "ONBUILD ADD [\"a\", \"/b\"]",
		"RUN <<\"E\\\"\nx\nE\\\nADD http://h/f /f", "RUN a \\\n add http://h/f /f", "RUN a \\\n add github.com/a/b /c",
	} {
		if _, err := Read([]byte("FROM a\n"+text+"\n"), platform); !errors.As(err, new(*URLError)) {
			t.Errorf("%q passes: %v", text, err)
		}
		if err := CheckTrigger(text); !errors.As(err, new(*URLError)) {
			t.Errorf("trigger %q passes: %v", text, err)
		}
	}
	for _, text := range []string{
		"ADD a.tar.gz /", "ADD ./a_b-c/d /", "COPY $X /f", "RUN curl http://h/f", "# ADD http://h/f /f", "RUN a \\\n  && add-user http://h", "ADD a b /c/",
		"ADD httpd.conf /", "LABEL add=http://h/f", "ADD --chown=1000:users --chmod=644 a /b", "ONBUILD ADD . /app", `COPY ["http:", "/b"]`,
		"RUN apk \\\n  add --no-cache curl=1 && rm -rf '/x'", "ADD .",
	} {
		if _, err := Read([]byte("FROM a\n"+text+"\n"), platform); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if err := CheckTrigger(text); err != nil {
			t.Errorf("trigger %q: %v", text, err)
		}
	}
	if err := CheckTrigger("# escape=`\nADD a b"); err == nil {
		t.Error("a trigger with another escape character passes")
	}
	for _, text := range []string{strings.Repeat("a\\\n", MaxBytes/4), strings.Repeat("\n", MaxBytes+1)} {
		if _, err := Read([]byte("ARG A=a\n"+text), platform); err == nil {
			t.Errorf("%.20q passes", text)
		}
	}
	if _, err := Read([]byte("# escape=`\nFROM a\n"), platform); err == nil {
		t.Error("another escape character passes")
	}
}

// Only what another builder would take for a here-document is refused, not
// quoted and shifted text.
func TestHereDocuments(t *testing.T) {
	for text, refused := range map[string]bool{
		"RUN cat > /f <<'EOF'\n# nothing\nEOF": true, "run <<-E sh\n\tE": true, "COPY <<a <<b /d/": true, "ONBUILD RUN cat 3<<E": true, "RUN a && \\\n  b <<\"E F\"": true,
		"RUN python -c 'print(1 <<2)'": false, `RUN sh -c "cat <<E"`: false, `RUN ["sh", "-c", "cat <<E"]`: false, "RUN echo $((1<<3)) $((1 << 3))": false, "RUN cat <<<word": false,
		"RUN a <b": false, "# RUN <<E": false,
	} {
		_, err := Read([]byte("FROM a\n"+text+"\n"), platform)
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), "support here-documents") {
			t.Errorf("%q: %v, want refused %t", text, err, refused)
		}
	}
}

// A builder with a network gets no instruction that could use it.
func TestCheck(t *testing.T) {
	for _, text := range []string{
		"FROM a\nADD http://h/f /f", "FROM a\nADD [\"a\", \"/b\"]", "# syntax=docker/dockerfile:1\nFROM a", "\ufeff#Syntax = x\nFROM a", "// syntax=x\nFROM a",
		"#!/bin/x\n# syntax=x\nFROM a", "#!/bin/x\n{\"syntax\": \"x\"}", " {\"syntax\":\n\"x\"}", "# a\r\n# syntax=x\r\nFROM a",
		"FROM a\nRUN --network=host b", "FROM a\nRUN --mount=type=tmpfs,target=/x --network=host b", "FROM a\nONBUILD RUN --net\\\nwork=host b", "FROM a\nRUN --mount=\"type=x\" b",
		"FROM a\nRUN --security=insecure b", "FROM dir:/etc", "FROM --platform=linux/amd64 oci-archive:/x", "FROM a\nCOPY --from=docker-archive:/x a b", "FROM a\nRUN --mount=type=bind,from=dir:/etc,target=/x cp /x /y",
		"ARG X=dir:/etc\nFROM $X", "ARG X=dir\nFROM $X:/etc", "ARG X=d\nFROM ${X}ir:/etc", "FROM ${X:-dir:/etc}", `FROM d\ir:/etc`, `FROM "d"ir:/etc`, "from $X AS b", "ONBUILD FROM $X", "FROM --platform=$P $X",
		"FROM a\nCOPY --from=$X a b", "FROM a\nCOPY --from=${X} a b", "FROM a\nCOPY --chown=0 --from=$X a b", "FROM a\nCOPY --fr\\om=dir:/etc a b", "FROM a\nCOPY --from=\"d\"ir:/etc a b",
		"FROM a\nCOPY \xa0--from=$X a b", "FROM a\nRUN \x85--network=host b", "FROM a\nRUN --mount=type=cache,target=/x \xa0--network=host b", "FROM \xa0--platform=$P $X",
		"FROM a\nRUN --mount=type=cache,target=/x\u00a0--network=host b", "FROM a\nRUN --mount=type=cache,target=/\u0160 --network=host b", "FROM a\nCOPY --chown=0\u0085--from=$X a b", "FROM --platform=\u00a0x $X",
		"FROM a\nRUN <<'E\\'\nx\nE\\\nRUN --network=host b", "FROM a\nRUN <<-'#'\nx \\\n#\nRUN --network=host b", "FROM a\nRUN a <<''\nx \\\n\nRUN --network=host b", "FROM a\nRUN a <<' '\nx \\\n \nRUN --network=host b", "FROM a\nRUN a <<\"${X:- }\"\nx \\\n \nRUN --network=host b",
		"FROM\vdir:/etc", "FROM\v$X", "FROM a\nCOPY --chown=0;1 a b",
		strings.Repeat("\n", MaxBytes+1),
	} {
		if err := Check([]byte(text)); err == nil {
			t.Errorf("%.60q passes", text)
		}
	}
	for _, text := range []string{
		"FROM docker:dind AS dir\nCOPY --from=dir a b", "FROM a\nRUN <<E\nb\nE", "# my syntax\nFROM a\nRUN echo {} '# syntax'", "FROM a\nRUN --mount=type=cache,target=/root/.cache a --network=host -b",
		"FROM a\nRUN -x", "FROM a\nADD b /c", "ARG V=1\nFROM golang:${V} AS b\nFROM --platform=$BUILDPLATFORM r.example:5000/a/$X@sha256:0", "FROM a\nCOPY --chown=$U:$G --chmod=644 --link --from=b:1 a $D", "FROM a\nCOPY $X --from=b c",
		"FROM a\nRUN python3 <<EOF\nfrom os import path\nEOF", "FROM a\nCOPY <<EOF /app.py\nfrom flask import Flask, request\nEOF", "FROM a\nRUN psql <<EOF\nSELECT a\nFROM t WHERE b > 1;\nEOF",
		"FROM a\nRUN <<'E' # b\nc\nE", "FROM a\nRUN echo $((1<<2)) && cat <<<\"\\n\"", "FROM a\nRUN sh -c \"cat <<\\n#\"",
		"FROM a\nCOPY --chmod=u=rwX,go=rX a b", "FROM a\nCOPY --chmod=+x --exclude=*.[ch] --exclude=!~a a b", "FROM a\nRUN echo \u00a0--x",
	} {
		if err := Check([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestBases(t *testing.T) {
	for _, test := range []struct {
		text  string
		bases []string
		runs  bool
	}{
		{"FROM a", []string{"a"}, false},
		{"\ufefffrom a:1 as One\nFROM scratch\nFROM ONE\nRUN x", []string{"a:1"}, true},
		{"ARG V=3\nARG B=\"py:$V\"\nFROM ${B}\nFROM x${C:-y}", []string{"py:3", "xy"}, false},
		{"FROM --platform=linux/amd64 a@sha256:0", []string{"a@sha256:0"}, false},
		{"FROM a\nRUN psql \"SELECT x \\\nFROM table\"", []string{"a"}, true},
		{"FROM a\nENV X=1 \\\\\nFROM b", []string{"a", "b"}, false},
		{"FROM \\\n b", []string{"b"}, false},
		{"FROM a\nONBUILD RUN x", []string{"a"}, true},
		{"ARG A=a\n" + strings.Repeat("ARG A=$A$A\n", 1000) + "FROM $A", []string{strings.Repeat("a", maxValue)}, false},
	} {
		f, err := Read([]byte(test.text), platform)
		if err != nil || !slices.Equal(f.Bases, test.bases) || f.Runs != test.runs {
			t.Errorf("%q: %+v, %v", test.text, f, err)
		}
	}
	for _, text := range []string{"FROM $X", "FROM ${X:+y}", "FROM --platform=linux/arm64 a", "FROM --platform=$BUILDPLATFORM a", "FROM", `FROM a\b`} {
		if f, err := Read([]byte(text), platform); err == nil {
			t.Errorf("%q: %+v", text, f)
		}
	}
}

// Whatever else a Dockerfile contains, an instruction on its own line that adds
// a URL is found.
func FuzzRead(f *testing.F) {
	f.Add("FROM a\nRUN b \\\n c\n", "COPY x y")
	f.Add("# escape=\\\nARG X=1\nFROM $X\n", "RUN <<E")
	f.Fuzz(func(t *testing.T, before, after string) {
		if len(before)+len(after) > 4096 {
			t.Skip()
		}
		_, err := Read([]byte(before+"\nADD http://h/f /f\n"+after), platform)
		if err == nil {
			t.Errorf("%q, %q: it passes", before, after)
		}
	})
}
