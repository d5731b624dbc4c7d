// Package skill finds a session's skills: directories with a SKILL.md, whose front
// matter names and describes the skill and whose body the model gets with the tool
// load_skill. The front matter's allowed-tools restricts the session that has
// loaded the skill; it never permits anything.
//
// A skill of the workspace is data from its author. A skill from the operator's
// directories, or one whose file is as the user trusted it, counts as the
// operator's.
package skill
