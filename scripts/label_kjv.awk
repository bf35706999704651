# Makes labeled tables (tab-separated) from the King James Bible with one verse per line ("Ge1:1 In the beginning
# ..."):
#   awk -f scripts/label_kjv.awk -v task=sections data/kjv.txt   passages of four verses, and their part of the Bible
#   awk -f scripts/label_kjv.awk -v task=pairs data/kjv.txt      a verse, and a damaged copy (one letter in twelve lost)
#                                                                of it or, for every other pair, of another verse of
#                                                                the same book
# The table does not depend on the awk: the random numbers are computed here (Park and Miller 1988).

function random(n) {  # 0 .. n - 1
  state = (state * 16807) % 2147483647
  return int(state / 2147483647 * n)
}

function worn(text,   i, copy) {
  copy = ""
  for (i = 1; i <= length(text); ++i) if (random(12) > 0) copy = copy substr(text, i, 1)
  return copy
}

BEGIN {
  if (task != "sections" && task != "pairs") {
    print "label_kjv.awk: task \"" task "\" is unknown; expected -v task=sections or -v task=pairs" > "/dev/stderr"
    failed = 1
    exit 1
  }
  state = 20130731
  n_verses = 0
  split("law Ge Exo Lev Num Deu;" \
        "history Josh Jdgs Ruth 1Sm 2Sm 1Ki 2Ki 1Chr 2Chr Ezra Neh Est;" \
        "poetry Job Psa Prv Eccl SSol;" \
        "prophets Isa Jer Lam Eze Dan Hos Joel Amos Obad Jonah Mic Nahum Hab Zep Hag Zec Mal;" \
        "gospels_and_acts Mat Mark Luke John Acts;" \
        "epistles Rom 1Cor 2Cor Gal Eph Phi Col 1Th 2Th 1Tim 2Tim Titus Phmn Heb Jas 1Pet 2Pet 1Jn 2Jn 3Jn Jude Rev",
        sections, ";")
  for (s in sections) {
    count = split(sections[s], words, " ")
    for (w = 2; w <= count; ++w) section_of[words[w]] = words[1]
  }
}

{
  name = $1
  sub(/[0-9]+:[0-9]+$/, "", name)
  if (!(name in section_of)) {
    print "label_kjv.awk: line " NR " is of an unknown book: " $1 > "/dev/stderr"
    failed = 1
    exit 1
  }
  if (!(name in first_of)) first_of[name] = n_verses
  last_of[name] = n_verses
  book_of[n_verses] = name
  sub(/^[^ ]+ /, "")
  verse[n_verses++] = $0
}

END {
  if (failed) exit 1
  for (i = 0; i < n_verses; ++i) {
    first = first_of[book_of[i]]
    n_book = last_of[book_of[i]] - first + 1
    if (task == "pairs") {
      other = i % 2 == 0 ? i : first + (i - first + 1 + random(n_book - 1)) % n_book
      print verse[i] "\t" worn(verse[other]) "\t" (other == i ? "same" : "other")
    } else if ((i - first) % 4 == 0 && i + 3 < first + n_book) {
      print verse[i] " " verse[i + 1] " " verse[i + 2] " " verse[i + 3] "\t" section_of[book_of[i]]
    }
  }
}
