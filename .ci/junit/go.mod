// Reads the JUnit files of Caisson with a parser of others, which the program doesn't link.
module github.com/caisson-run/caisson/ci/junit

go 1.26.5

require github.com/joshdk/go-junit v1.0.0
