# Labelled tables (tab-separated) out of the King James Bible, a verse a line ("Ge1:1 In the beginning ..."):
#   awk -f scripts/label_kjv.awk -v task=sections data/kjv.txt   passages of four verses, and the part of the Bible that they are from
#   awk -f scripts/label_kjv.awk -v task=pairs data/kjv.txt      two passages, and whether they are from one book (half of them are)
# The same table whatever awk runs it: the random numbers are its own (Park and Miller 1988).

function random(n) {  # 0 .. n - 1
  state = (state * 16807) % 2147483647
  return int(state / 2147483647 * n)
}

function end_passage() {
  if (verses == 0) return
  passage[n_passages] = text
  book_of[n_passages] = book
  if (!(book in first_of)) first_of[book] = n_passages
  last_of[book] = n_passages++
  text = ""
  verses = 0
}

BEGIN {
  state = 20130731
  n_passages = verses = 0
  split("law Ge Exo Lev Num Deu;history Josh Jdgs Ruth 1Sm 2Sm 1Ki 2Ki 1Chr 2Chr Ezra Neh Est;poetry Job Psa Prv Eccl SSol;" \
        "prophets Isa Jer Lam Eze Dan Hos Joel Amos Obad Jonah Mic Nahum Hab Zep Hag Zec Mal;gospels_and_acts Mat Mark Luke John Acts;" \
        "epistles Rom 1Cor 2Cor Gal Eph Phi Col 1Th 2Th 1Tim 2Tim Titus Phmn Heb Jas 1Pet 2Pet 1Jn 2Jn 3Jn Jude Rev", sections, ";")
  for (s in sections) {
    count = split(sections[s], words, " ")
    for (w = 2; w <= count; ++w) section_of[words[w]] = words[1]
  }
}

{
  name = $1
  sub(/[0-9]+:[0-9]+$/, "", name)
  if (!(name in section_of)) {
    print "label_kjv.awk: line " NR " is of no book that it knows: " $1 > "/dev/stderr"
    failed = 1
    exit 1
  }
  if (name != book || verses == 4) end_passage()
  book = name
  sub(/^[^ ]+ /, "")
  text = text (verses > 0 ? " " : "") $0
  ++verses
}

END {
  if (failed) exit 1
  end_passage()
  for (i = 0; i < n_passages; ++i) {
    book = book_of[i]
    if (task == "sections") {
      print passage[i] "\t" section_of[book]
      continue
    }
    first = first_of[book]
    inside = last_of[book] - first + 1
    if (i % 2 == 0 && inside > 1) {
      other = first + (i - first + 1 + random(inside - 1)) % inside
    } else {
      do other = random(n_passages); while (book_of[other] == book)
    }
    print passage[i] "\t" passage[other] "\t" (book_of[other] == book ? "same" : "different")
  }
}
